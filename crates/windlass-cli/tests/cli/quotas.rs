//! What tenants may use, from the command line.

use crate::common::Windlass;

const TENANT: &str = "0190b3a2-7c1e-7000-8000-000000000001";

/// BEY-8.
#[test]
fn a_quota_is_set_shown_kept_to_and_cleared() {
    let windlass = Windlass::new();
    windlass.json(&["migrate"]);
    assert!(windlass.run(&["quota", "show"]).stdout.contains("nothing is limited"));
    assert_eq!(windlass.json(&["quota", "set", "--default", "--running", "50"])["quota"]["running"], 50);
    let set = ["quota", "set", "--tenant", TENANT, "--queued", "1", "--rate", "2.5/s", "--weight", "3"];
    assert_eq!(windlass.json(&set)["quota"]["submit_rate"]["burst"], 3, "one second's worth, rounded up");
    windlass.submit(&["any", "1", "--tenant", TENANT]);
    let error = windlass.fails(&["submit", "any", "1", "--tenant", TENANT], 6, "quota_exceeded");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("1 unfinished jobs")), "{error}");
    windlass.submit(&["any", "1"]);
    let tenants = windlass.json(&["tenants"]);
    assert_eq!(tenants["tenants"][1]["tenant"], TENANT);
    assert_eq!((&tenants["tenants"][1]["queued"], &tenants["tenants"][1]["own"]), (&1.into(), &true.into()));
    let table = windlass.run(&["tenants", "--tenant", TENANT]).stdout;
    assert!(table.contains("1/1") && table.contains("2.5/s, 3 at once"), "{table}");
    assert_eq!(windlass.json(&["quota", "show"])["quota"]["running"], 50, "the default holds for the root tenant");
    windlass.json(&["quota", "clear", "--tenant", TENANT]);
    windlass.fails(&["quota", "clear", "--tenant", TENANT], 3, "not_found");
    windlass.submit(&["any", "1", "--tenant", TENANT]);
}

#[test]
fn a_quota_that_makes_no_sense_is_wrong_input() {
    let windlass = Windlass::new();
    windlass.json(&["migrate"]);
    assert_eq!(windlass.fails(&["quota", "set"], 2, "invalid_input")["field"], "quota");
    assert_eq!(windlass.fails(&["quota", "set", "--weight", "0"], 2, "invalid_input")["field"], "weight");
    assert_eq!(windlass.fails(&["quota", "set", "--rate", "0"], 2, "invalid_input")["field"], "rate");
    windlass.fails(&["quota", "set", "--burst", "5"], 2, "usage");
}
