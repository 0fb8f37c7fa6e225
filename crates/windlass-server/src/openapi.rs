//! The OpenAPI document: what the router knows of its routes, with what holds for all of them added. Made once when a
//! router is built; served as it is, and as a page that needs nothing from elsewhere.

use maud::{DOCTYPE, Markup, html};
use serde_json::{Map, Value, json};

use crate::auth::Need;

/// One operation with what it needs: its method, its path, its need.
pub(crate) type Needs = Vec<(String, String, Need)>;

/// Adds to the routes' own document what holds for all of them: who may call each, how errors look, where it is served.
pub(crate) fn complete(document: &utoipa::openapi::OpenApi, needs: &Needs, base: &str) -> Value {
    let mut document = serde_json::to_value(document).expect("a document is plain data");
    document["info"] = json!({
        "title": "Windlass",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Durable background jobs: submit, watch and control them. Errors are RFC 9457 problems.",
        "license": { "name": "MIT OR Apache-2.0" },
    });
    document["servers"] = json!([{ "url": format!("{base}{}", crate::routes::API) }]);
    document["components"]["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "An API key or a JSON Web Token." },
        "session": { "type": "apiKey", "in": "cookie", "name": "__Host-windlass",
            "description": "The session of the dashboard, accepted only from its own pages." },
    });
    for (method, path, need) in needs {
        let operation = &mut document["paths"][path][method];
        let mut rights: Vec<String> = need.rights.iter().map(|right| right.as_str().to_owned()).collect();
        if need.all_tenants {
            rights.push("all_tenants".to_owned());
        }
        operation["x-rights"] = json!(rights);
        operation["operationId"] = json!(operation_id(method, path));
        operation["security"] = json!([{ "bearer": [] }, { "session": [] }]);
        let problem = json!({
            "description": "An error; `code` identifies it.",
            "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
        });
        operation["responses"]["default"] = problem;
        for response in operation["responses"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            if response["description"].as_str().unwrap_or_default().is_empty() {
                response["description"] = json!("Done.");
            }
        }
    }
    document
}

/// The name of an operation in generated clients: `get_jobs`, `post_jobs_id_cancel`. Functions of several modules share
/// their names, routes do not.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(['/', '{', '}', '-']).filter(|word| !word.is_empty());
    words.fold(method.to_owned(), |id, word| id + "_" + word)
}

/// The document as a page: every operation with its parameters, bodies and a line for a shell, then every schema.
pub(crate) fn page(document: &Value, base: &str) -> Markup {
    let server = document["servers"][0]["url"].as_str().unwrap_or_default();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Windlass API" }
                // None, so that browsers do not ask for one: the dashboard, which has it, may be off.
                link rel="icon" href="data:,";
                link rel="stylesheet" href={ (base) "/docs/style.css" };
            }
            body {
                main {
                    h1 { "Windlass API " small { (text(&document["info"]["version"])) } }
                    p { (text(&document["info"]["description"])) " "
                        a href={ (server) "/openapi.json" } { "OpenAPI document" } " · " a href={ (base) "/" } { "Dashboard" } }
                    @for (path, operations) in entries(&document["paths"]) {
                        @for (method, operation) in entries(operations).filter(|(_, operation)| operation.is_object()) {
                            (self::operation(server, path, method, operation))
                        }
                    }
                    h2 { "Schemas" }
                    @for (name, schema) in entries(&document["components"]["schemas"]) {
                        details id={ "schema-" (name) } {
                            summary { code { (name) } " " (text(&schema["description"])) }
                            pre { code { (pretty(schema)) } }
                        }
                    }
                }
            }
        }
    }
}

fn operation(server: &str, path: &str, method: &str, operation: &Value) -> Markup {
    let rights: Vec<&str> = list(&operation["x-rights"]).filter_map(Value::as_str).collect();
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    html! {
        details.operation id={ (text(&operation["operationId"])) } {
            summary {
                code.method.{ (method) } { (method.to_uppercase()) } " " code { (path) } " "
                span { (text(&operation["summary"])) }
            }
            @let description = text(&operation["description"]);
            @if !description.is_empty() { p { (description) } }
            p { "Needs: " @if rights.is_empty() { "any credential" } @else { code { (rights.join(", ")) } } }
            @if list(&operation["parameters"]).next().is_some() {
                table {
                    tr { th { "parameter" } th { "in" } th { "" } }
                    @for parameter in list(&operation["parameters"]) {
                        tr {
                            td { code { (text(&parameter["name"])) } }
                            td { (text(&parameter["in"])) @if parameter["required"] == true { ", required" } }
                            td { (text(&parameter["description"])) }
                        }
                    }
                }
            }
            @if !body.is_null() { p { "Body: " (schema_of(body)) } }
            ul {
                @for (status, response) in entries(&operation["responses"]) {
                    li {
                        code { (status) } " " (text(&response["description"])) " "
                        @for (_, content) in entries(&response["content"]) { (schema_of(&content["schema"])) }
                    }
                }
            }
            pre { code { (curl(server, path, method, !body.is_null())) } }
        }
    }
}

/// A line for a shell that makes the call.
fn curl(server: &str, path: &str, method: &str, body: bool) -> String {
    let data = if body { " \\\n  -H 'Content-Type: application/json' -d '{}'" } else { "" };
    let method = method.to_uppercase();
    format!(
        "curl -X {method} -H \"Authorization: Bearer $WINDLASS_API_KEY\"{data} \\\n  \"$WINDLASS_URL{server}{path}\""
    )
}

fn schema_of(schema: &Value) -> Markup {
    let reference = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
    let one_of = list(&schema["oneOf"]).find(|option| option["$ref"].is_string());
    html! {
        @match (reference, one_of) {
            (Some(name), _) => { a href={ "#schema-" (name) } { code { (name) } } },
            (None, Some(option)) => { (schema_of(option)) },
            _ => { code { (schema.to_string()) } },
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// How the page looks; the policy of the server allows nothing inline.
pub(crate) const STYLE: &str = include_str!("openapi.css");
