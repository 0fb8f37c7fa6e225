//! Sealed jobs from the command line: keys are generated, used, rotated and destroyed, and nothing is shown without them.

use crate::common::Windlass;
use serde_json::json;

fn with_keys(windlass: &Windlass) -> String {
    let keys = windlass.path().join("windlass.keys");
    let line = windlass.run(&["keys", "generate", "first"]);
    assert_eq!(line.code, 0, "{line:?}");
    std::fs::write(&keys, line.stdout).expect("written");
    keys.to_str().expect("a path").to_owned()
}

/// SEC-2.
#[test]
fn a_job_submitted_with_keys_is_shown_only_with_them() {
    let windlass = Windlass::new();
    let keys = with_keys(&windlass);
    let id = windlass.submit(&["mail.send", r#"{"to":"canary@example.org"}"#, "--key-file", &keys]);
    let open = windlass.json(&["show", &id, "--input", "--key-file", &keys]);
    assert_eq!((&open["input"]["to"], open.get("sealed")), (&json!("canary@example.org"), None));
    let sealed = windlass.run(&["show", &id, "--input"]);
    assert!(sealed.code == 0 && sealed.stdout.contains("[sealed] name the key file with --key-file"), "{sealed:?}");
    assert!(!sealed.stdout.contains("canary"), "{sealed:?}");
    let sealed = windlass.json(&["show", &id, "--input"]);
    assert_eq!((&sealed["input"], &sealed["sealed"]["code"]), (&json!(null), &json!("sealed")));
    let file = std::fs::read(windlass.database()).expect("the file");
    assert!(!file.windows(6).any(|bytes| bytes == b"canary"), "the file has the plain text");
}

/// SEC-2.
#[test]
fn keys_are_rotated_wrapped_anew_and_destroyed() {
    let windlass = Windlass::new();
    let keys = with_keys(&windlass);
    let id = windlass.submit(&["mail.send", "7", "--key-file", &keys]);
    assert_eq!(windlass.json(&["keys", "rotate", "--key-file", &keys])["version"], 2);
    let without = windlass.fails(&["keys", "rotate"], 5, "sealed").to_string();
    assert!(without.contains("--key-file"), "{without}");
    let old = std::fs::read_to_string(&keys).expect("the keys");
    let new = windlass.run(&["keys", "generate", "second"]).stdout;
    std::fs::write(&keys, format!("{new}{old}")).expect("written");
    assert_eq!(windlass.json(&["keys", "rewrap", "--key-file", &keys])["rewrapped"], 2);
    std::fs::write(&keys, new).expect("written");
    assert_eq!(windlass.json(&["show", &id, "--input", "--key-file", &keys])["input"], 7);
    let listed = windlass.json(&["keys", "status"]);
    let keks: Vec<_> = listed["keys"].as_array().expect("keys").iter().map(|key| key["kek"].clone()).collect();
    assert_eq!(keks, [json!("second"), json!("second")]);
    let refused = windlass.run(&["keys", "destroy"]);
    assert!(refused.code == 2 && refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(windlass.json(&["keys", "destroy", "--yes"])["destroyed"], 2);
    let shown = windlass.json(&["show", &id, "--input", "--key-file", &keys]);
    assert_eq!(shown["sealed"]["code"], "key_destroyed");
}

/// SEC-2: a bad key file is refused before anything is opened, without showing what is in it.
#[test]
fn a_bad_key_file_is_refused() {
    let windlass = Windlass::new();
    let keys = windlass.path().join("windlass.keys");
    std::fs::write(&keys, "first:c2VjcmV0").expect("written");
    let path = keys.to_str().expect("a path");
    let error = windlass.fails(&["submit", "mail.send", "1", "--key-file", path], 2, "invalid_input").to_string();
    assert!(error.contains("entry 1") && !error.contains("c2VjcmV0"), "{error}");
}
