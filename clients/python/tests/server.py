"""The running server that the tests speak to: `cargo xtask clients` starts one and names it."""

import os
import uuid

from windlass_client import Client

URL = os.environ.get("WINDLASS_URL", "")
KEY = os.environ.get("WINDLASS_API_KEY", "")
if not URL or not KEY:
    raise RuntimeError("run `cargo xtask clients`, or set WINDLASS_URL and WINDLASS_API_KEY (`windlass up --help`)")


def client(**settings):
    """A client of it, with its own settings where a test needs them."""
    return Client(URL, settings.pop("key", KEY), **settings)


def unique(word):
    """A word that no other test and no earlier run has used."""
    return f"{word}-{uuid.uuid4().hex[:12]}"
