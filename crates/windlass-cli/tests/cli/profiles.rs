//! Profiles: saved for their owner alone, chosen by name, by variable or for good, and never printed with their key.

use crate::common::{Windlass, bare, failed, finish};
use serde_json::json;

#[test]
fn a_saved_place_is_used_by_name_and_where_none_is_named() {
    let windlass = Windlass::new();
    let other = format!("sqlite:{}", windlass.path().join("other.db").display());
    let config = windlass.path().join("profiles.toml");
    let run = |args: &[&str]| {
        let mut command = bare(&[args, &["--json"]].concat());
        command.env("WINDLASS_CONFIG", &config);
        finish(command)
    };
    assert_eq!(run(&["profile", "add", "other", "--db", &other]).code, 0);
    assert_eq!(run(&["migrate", "--profile", "other"]).code, 0);
    assert_eq!(run(&["submit", "email.send", "--profile", "other"]).code, 0);
    assert!(windlass.path().join("other.db").exists());
    // Whoever names a profile does not mean the database of the environment.
    assert_eq!(windlass.json(&["stats", "--profile", "other"])["pending"], 1);
    assert_eq!(run(&["profile", "use", "other"]).code, 0);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats"]).stdout).expect("an object");
    assert_eq!(stats["pending"], 1);
    let listed = windlass.json(&["profile", "list"]);
    let shown = json!({ "place": other, "tenant": null, "api_key": false, "key_file": null, "current": true });
    assert_eq!(listed["profiles"]["other"], shown);
    assert_eq!(run(&["profile", "remove", "other"]).code, 0);
    failed(run(&["stats", "--profile", "other"]), 3, "not_found");
}

/// A service of systemd or a container may have no home: only who names a profile needs the file.
#[test]
fn without_a_home_directory_there_are_no_profiles() {
    let windlass = Windlass::new();
    let db = format!("sqlite:{}", windlass.path().join("homeless.db").display());
    let run = |args: &[&str]| {
        let mut command = bare(&[&["--json", "--db", &db], args].concat());
        command.env_clear();
        finish(command)
    };
    let migrated = run(&["migrate"]);
    assert_eq!(migrated.code, 0, "{migrated:?}");
    assert_eq!(run(&["stats"]).code, 0);
    let named = run(&["stats", "--profile", "other"]);
    assert!(named.code == 1 && named.stderr.contains("WINDLASS_CONFIG"), "{named:?}");
}

#[test]
fn a_key_is_read_from_stdin_kept_for_its_owner_and_never_shown() {
    let windlass = Windlass::new();
    let key = "wl_live_abc_def_ghi";
    let add = ["profile", "add", "prod", "--url", "https://jobs.example.org", "--api-key-stdin"];
    let added = windlass.run_with_input(&add, &format!("{key}\n"));
    assert_eq!(added.code, 0, "{added:?}");
    let file = windlass.path().join("profiles.toml");
    assert!(std::fs::read_to_string(&file).expect("it is there").contains(key));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    }
    let listed = windlass.run(&["profile", "list"]);
    assert!(listed.stdout.contains("https://jobs.example.org"), "{listed:?}");
    for ran in [&added, &listed, &windlass.run(&["profile", "list", "--json"])] {
        assert!(!ran.stdout.contains(key) && !ran.stderr.contains(key), "{ran:?}");
    }
    windlass.fails(&["profile", "add", "prod", "--url", "https://elsewhere.example.org"], 4, "conflict");
    assert_eq!(windlass.json(&["profile", "use", "prod"])["current"], "prod");
    assert_eq!(windlass.json(&["profile", "use", "--none"])["current"], json!(null));
}

#[test]
fn what_cannot_be_a_profile_is_refused() {
    let windlass = Windlass::new();
    windlass.fails(&["profile", "add", "nowhere"], 2, "usage");
    let wrong = windlass.fails(&["profile", "add", "bad", "--url", "ftp://example.org"], 2, "invalid_input");
    assert_eq!(wrong["field"], "url");
    windlass.fails(&["profile", "add", "a b", "--url", "https://example.org"], 2, "invalid_input");
    windlass.fails(&["profile", "use", "nobody"], 3, "not_found");
    windlass.fails(&["stats", "--profile", "nobody"], 3, "not_found");
    assert!(!windlass.path().join("profiles.toml").exists(), "nothing was written");
}
