#!/usr/bin/env python3
"""Writes the types of both clients from the server's OpenAPI document.

    python3 clients/generate.py openapi.json            # or a URL, such as http://127.0.0.1:7878/api/v1/openapi.json
    python3 clients/generate.py --check openapi.json    # writes nothing; fails if the files are not current

Called by people after the API has changed, and by `cargo xtask clients`, which checks. Knows as much of JSON Schema as the
document uses, and refuses the rest: a type that is quietly wrong is worse than none.
"""

import json
import keyword
import pathlib
import re
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TYPESCRIPT = HERE / "typescript" / "src" / "schema.ts"
PYTHON = HERE / "python" / "src" / "windlass_client" / "schema.py"
NOTE = "Made by clients/generate.py from the server's OpenAPI document. Do not edit."
# What the server calls its types where a caller would say it otherwise. `Body` at the end of a name is left out too,
# where no other type has the name without it.
NAMES = {"ErrorBody": "JobError", "OverlapName": "Overlap", "StatusName": "Status"}
# Long enough for a sentence, short enough for every editor.
WIDTH = 110


def main(arguments):
    check = "--check" in arguments
    sources = [argument for argument in arguments if argument != "--check"]
    if len(sources) != 1:
        sys.exit(__doc__)
    schemas = load(sources[0])["components"]["schemas"]
    for name in schemas:
        short = name[: -len("Body")] if name.endswith("Body") else name
        NAMES.setdefault(name, name if short in schemas else short)
    wanted = {TYPESCRIPT: typescript(schemas), PYTHON: python(schemas)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        name = path.relative_to(HERE.parent)
        if check:
            print(f"{name} is not what the OpenAPI document says: run clients/generate.py", file=sys.stderr)
        else:
            path.write_text(wanted[path])
            print(f"wrote {name}")
    return 1 if check and stale else 0


def load(source):
    """The document, from a file or from a server."""
    if source.startswith(("http://", "https://")):
        with urllib.request.urlopen(source, timeout=30) as answer:
            return json.load(answer)
    return json.loads(pathlib.Path(source).read_text())


class Refused(Exception):
    """Something in the document that this script does not know."""


def parts(schema):
    """A schema as `(kind, detail)`, the same for every target language."""
    if schema is True or not meaningful(schema):
        return "any", None
    if "$ref" in schema:
        return "ref", type_name(schema["$ref"].rsplit("/", 1)[-1])
    if "const" in schema:
        return "values", [schema["const"]]
    if "enum" in schema:
        return "values", schema["enum"]
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return "union", schema[key]
    if "allOf" in schema:
        return "all", schema["allOf"]
    kind = schema.get("type")
    if isinstance(kind, list):
        return "union", [{**schema, "type": one} for one in kind]
    if kind == "array":
        return "array", schema.get("items", {})
    if kind == "object" or "properties" in schema:
        if schema.get("properties"):
            return "object", schema
        more = schema.get("additionalProperties", True)
        return "map", {} if more is True else more
    if kind in ("string", "integer", "number", "boolean", "null"):
        return kind, None
    raise Refused(json.dumps(schema))


def meaningful(schema):
    """Whether a schema says anything about the type; descriptions and examples do not."""
    return set(schema) & {"$ref", "const", "enum", "oneOf", "anyOf", "allOf", "type", "properties"}


def type_name(name):
    return re.sub(r"[^A-Za-z0-9]", "_", NAMES.get(name, name))


def sentences(schema, indent=0):
    """A description as lines of bounded width."""
    text = " ".join((schema.get("description") or "").split())
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH - indent:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line] if line else lines


# TypeScript


def typescript(schemas):
    out = [f"// {NOTE}"]
    for name, schema in sorted(schemas.items(), key=lambda item: type_name(item[0])):
        kind, detail = parts(schema)
        out.append("")
        out += ts_comment(schema, "")
        if kind == "object":
            out.append(f"export interface {type_name(name)} {{")
            out += ts_fields(detail, "  ")
            out.append("}")
        else:
            out.append(f"export type {type_name(name)} = {ts_type(schema, '')};")
    return "\n".join(out) + "\n"


def ts_comment(schema, indent):
    lines = [line.replace("*/", "*\\/") for line in sentences(schema, len(indent) + 3)]
    if not lines:
        return []
    if len(lines) == 1:
        return [f"{indent}/** {lines[0]} */"]
    return [f"{indent}/**"] + [f"{indent} * {line}" for line in lines] + [f"{indent} */"]


def ts_fields(schema, indent):
    required = set(schema.get("required", []))
    out = []
    for name, field in schema["properties"].items():
        out += ts_comment(field, indent)
        shown = name if re.fullmatch(r"[A-Za-z_$][\w$]*", name) else json.dumps(name)
        mark = "" if name in required else "?"
        out.append(f"{indent}{shown}{mark}: {ts_type(field, indent)};")
    return out


def ts_type(schema, indent):
    kind, detail = parts(schema)
    if kind == "any":
        return "unknown"
    if kind == "ref":
        return detail
    if kind == "values":
        return " | ".join(json.dumps(value) for value in detail)
    if kind == "union":
        return " | ".join(dict.fromkeys(ts_type(one, indent) for one in detail))
    if kind == "all":
        return " & ".join(dict.fromkeys(ts_type(one, indent) for one in detail))
    if kind == "array":
        inner = ts_type(detail, indent)
        return f"({inner})[]" if re.search(r"[|&]", inner) else f"{inner}[]"
    if kind == "object":
        return "{\n" + "\n".join(ts_fields(detail, indent + "  ")) + f"\n{indent}}}"
    if kind == "map":
        return f"Record<string, {ts_type(detail, indent)}>"
    return {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}[kind]


# Python


def python(schemas):
    classes, aliases = [], {}
    for name, schema in sorted(schemas.items(), key=lambda item: type_name(item[0])):
        kind, detail = parts(schema)
        if kind == "object":
            classes += py_class(type_name(name), detail)
        elif kind == "all":
            classes += py_class(type_name(name), merged(schema, schemas))
        else:
            aliases[type_name(name)] = schema
    head = [
        f'"""{NOTE}"""',
        "",
        "# Annotations of classes are kept as text, so they may name what is defined further down; aliases come last.",
        "from __future__ import annotations",
        "",
        "from typing import Any, Dict, List, Literal, TypedDict, Union",
    ]
    return "\n".join(head + classes + [""] + py_aliases(aliases)) + "\n"


def py_aliases(schemas):
    """Aliases are evaluated as they are read: what one of them names comes before it."""
    out, done = [], set()

    def write(name):
        if name in done or name not in schemas:
            return
        done.add(name)
        text = py_type(schemas[name])
        for other in re.findall(r"\w+", text):
            write(other)
        out.extend(["", *[f"# {line}" for line in sentences(schemas[name], 2)], f"{name} = {text}"])

    for name in schemas:
        write(name)
    return out


def merged(schema, schemas):
    """What an `allOf` of objects amounts to."""
    out = {"description": schema.get("description"), "properties": {}, "required": []}
    for one in schema["allOf"]:
        if "$ref" in one:
            one = schemas[one["$ref"].rsplit("/", 1)[-1]]
        if "allOf" in one:
            one = merged(one, schemas)
        if "properties" not in one:
            raise Refused(f"an allOf with something that is not an object: {json.dumps(schema)}")
        out["properties"].update(one["properties"])
        out["required"] += one.get("required", [])
    return out


def py_class(name, schema):
    """A TypedDict. Its required fields are a class of their own, because Python 3.9 has no other way to say so."""
    required = set(schema.get("required", []))
    fields = schema["properties"]
    if any(keyword.iskeyword(field) or not field.isidentifier() for field in fields):
        inner = ", ".join(f"{json.dumps(field)}: Any" for field in fields)
        return ["", "", f"{name} = TypedDict({json.dumps(name)}, {{{inner}}}, total=False)"]
    must = {field: of for field, of in fields.items() if field in required}
    may = {field: of for field, of in fields.items() if field not in required}
    description = [f'    """{" ".join(sentences(schema))}"""'] if sentences(schema) else []
    if must and may:
        return [
            *["", "", f"class _{name}Required(TypedDict):"],
            *py_fields(must),
            *["", "", f"class {name}(_{name}Required, total=False):"],
            *description,
            *([""] if description else []),
            *py_fields(may),
        ]
    base = "TypedDict, total=False" if may else "TypedDict"
    return ["", "", f"class {name}({base}):", *description, *([""] if description else []), *py_fields(fields)]


def py_fields(fields):
    out = []
    for name, field in fields.items():
        out += [f"    # {line}" for line in sentences(field, 6)]
        out.append(f"    {name}: {py_type(field)}")
    return out


def py_value(value):
    return json.dumps(value) if isinstance(value, str) else repr(value)


def py_type(schema):
    kind, detail = parts(schema)
    if kind == "any":
        return "Any"
    if kind == "ref":
        return detail
    if kind == "values":
        return f"Literal[{', '.join(py_value(value) for value in detail)}]"
    if kind == "union":
        members = list(dict.fromkeys(py_type(one) for one in detail))
        return members[0] if len(members) == 1 else f"Union[{', '.join(members)}]"
    if kind == "array":
        return f"List[{py_type(detail)}]"
    if kind in ("object", "all"):
        # An object without a name; the type checker sees its fields where it has one.
        return "Dict[str, Any]"
    if kind == "map":
        return f"Dict[str, {py_type(detail)}]"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}[kind]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as refused:
        sys.exit(f"not understood: {refused}")
