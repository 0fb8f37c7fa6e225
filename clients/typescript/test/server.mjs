// The running server that the tests speak to: `cargo xtask clients` starts one and names it.

import { Windlass } from "../dist/index.js";

const url = process.env.WINDLASS_URL;
const key = process.env.WINDLASS_API_KEY;
if (!url || !key) throw new Error("run `cargo xtask clients`, or set WINDLASS_URL and WINDLASS_API_KEY (`windlass up --help`)");

/** A client of it, with its own settings where a test needs them. */
export function client(settings = {}) {
  return new Windlass({ url, key, ...settings });
}

/** A word that no other test and no earlier run has used. */
export function unique(word) {
  return `${word}-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
}
