//! What the files under `deploy/` ask of a server, asked of a real one (BEY-14, API-6).

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use windlass::Right;

use crate::rig::{Answer, Rig};

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The value of the first line with this key.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key));
    line.and_then(|rest| rest.strip_prefix(": ")).unwrap_or_else(|| panic!("no {key} in the file")).trim_matches('"')
}

/// BEY-14: the autoscaler gets a number, while jobs wait and while none do.
pub(crate) async fn an_autoscaler_reads_what_waits(rig: &Rig) {
    let rig = &rig.without_workers().await;
    let keda = file("kubernetes/keda.yaml");
    let path = value(&keda, "url").split_once("/api/v1").expect("a route of the API").1;
    let place = format!("/{}", value(&keda, "valueLocation").replace('.', "/"));
    let key = rig.operator_key(Rig::rights(&[Right::Read])).await;
    let waiting = || async {
        let answer = Answer::of(rig.ask_as(&key, Method::GET, path)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body.pointer(&place).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number in {answer:?}"))
    };
    assert_eq!(waiting().await, 0);
    rig.submit("echo", json!(1), json!({})).await;
    assert_eq!(waiting().await, 0, "of another handler");
    rig.submit("mail.send", json!(1), json!({})).await;
    rig.submit("mail.send", json!(2), json!({})).await;
    assert_eq!(waiting().await, 2);
}

/// API-6: the key that the files for Prometheus ask for opens the metrics, and none does not.
pub(crate) async fn prometheus_reads_metrics_with_its_key(rig: &Rig) {
    let key = rig.operator_key(Rig::rights(&[Right::Read])).await;
    for (name, path) in [("prometheus/prometheus.yml", "metrics_path"), ("kubernetes/monitor.yaml", "path")] {
        let text = file(name);
        assert!(text.contains("--rights read --all-tenants") && value(&text, "type") == "Bearer", "{name}");
        let url = format!("{}{}", rig.url, value(&text, path));
        let answer = Answer::of(rig.client.get(&url).bearer_auth(&key)).await;
        assert!(answer.status == 200 && answer.body.to_string().contains("jobs_submitted_total"), "{name}: {answer:?}");
        Answer::of(rig.client.get(&url)).await.is_problem(401, "unauthorized");
    }
}
