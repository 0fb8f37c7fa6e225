//! The one box of the dashboard: where what was typed leads. Decided here, from the text and the handlers that nodes have;
//! the page looks whether there is such a job. Never reads the store.

use windlass_core::{JobFilter, JobId, Signature, Status, TenantId, Timestamp};

use super::urls::term;

/// Where a text leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Nothing was typed.
    Nowhere,
    /// The page of this job, if there is one.
    Job(JobId),
    /// A number: the page of this job, or, where there is none, the failures that pass this filter.
    Number(JobId, String),
    /// The jobs that pass this filter. One with a mistake in it leads there too: the list says what is wrong.
    Jobs(String),
    /// The failures that pass this filter; its jobs where none fails now.
    Failures(String),
}

/// Reads what was typed: an id, a filter, a handler or the start of one, a status, a tenant, a signature, or else a text
/// of an error.
pub(crate) fn lead(typed: &str, handlers: &[String], now: Timestamp) -> Lead {
    let typed = typed.trim();
    if typed.is_empty() {
        return Lead::Nowhere;
    }
    if let Some(id) = id(typed) {
        let is_bare = typed.bytes().all(|byte| byte.is_ascii_digit());
        return if is_bare { Lead::Number(id, term("error", typed)) } else { Lead::Job(id) };
    }
    match JobFilter::parse(typed, now) {
        Ok(filter) => {
            let only = filter.only_id().filter(|_| filter.terms() == 1);
            return only.map_or_else(|| Lead::Jobs(typed.to_owned()), Lead::Job);
        }
        Err(_) if has_condition(typed) => return Lead::Jobs(typed.to_owned()),
        Err(_) => {}
    }
    if let Some(name) = handler(typed, handlers) {
        return Lead::Jobs(name);
    }
    if typed == "root" || TenantId::parse(typed).is_ok() {
        return Lead::Jobs(term("tenant", typed));
    }
    if Status::parse(typed).is_ok() {
        return Lead::Jobs(term("status", typed));
    }
    if typed.len() == 16 && typed.parse::<Signature>().is_ok() {
        return Lead::Failures(term("signature", typed));
    }
    Lead::Failures(term("error", typed))
}

/// A job's id, also with what people copy along: `#`, `job`.
fn id(typed: &str) -> Option<JobId> {
    let typed = typed.strip_prefix("job").unwrap_or(typed).trim_start().trim_start_matches('#');
    let digits = !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit());
    typed.parse().ok().filter(|_| digits)
}

/// Whether a word of it begins like a condition, so that a mistake in a filter is not taken for the text of an error.
fn has_condition(typed: &str) -> bool {
    let begins = |word: &str| {
        let word = word.trim_start_matches('-');
        let end = word.find([':', '<', '>']).unwrap_or(0);
        let name = word[..end].split('.').next().unwrap_or_default();
        end > 0 && JobFilter::NAMES.contains(&name)
    };
    typed.split_whitespace().any(begins)
}

/// The jobs of a handler by its name, by the start of one (`mail.*`), or by a part that one handler alone has.
fn handler(typed: &str, handlers: &[String]) -> Option<String> {
    if typed.chars().any(char::is_whitespace) {
        return None;
    }
    if handlers.iter().any(|name| name == typed) {
        return Some(term("handler", typed));
    }
    let start = typed.strip_suffix('*').unwrap_or(typed);
    let starting: Vec<&String> = handlers.iter().filter(|name| name.starts_with(start)).collect();
    let holding: Vec<&String> = handlers.iter().filter(|name| name.contains(start)).collect();
    match (starting.as_slice(), holding.as_slice()) {
        _ if typed.ends_with('*') && !start.is_empty() => Some(format!("{}*", term("handler", start))),
        ([one], _) | ([], [one]) => Some(term("handler", one)),
        ([_, _, ..], _) => Some(format!("{}*", term("handler", start))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn check(typed: &str, expected: Lead) {
        let handlers = ["mail.send", "mail.bounce", "images.resize"].map(str::to_owned);
        assert_eq!(lead(typed, &handlers, NOW), expected, "{typed}");
    }

    fn jobs(filter: &str) -> Lead {
        Lead::Jobs(filter.to_owned())
    }

    fn failures(filter: &str) -> Lead {
        Lead::Failures(filter.to_owned())
    }

    #[test]
    fn what_is_typed_leads_where_it_belongs() {
        let job = JobId::from_i64(6_237_184_712_970_240);
        for typed in [" #6237184712970240 ", "job 6237184712970240", "id:6237184712970240"] {
            check(typed, Lead::Job(job));
        }
        check(" 6237184712970240 ", Lead::Number(job, "error:6237184712970240".to_owned()));
        check("503", Lead::Number(JobId::from_i64(503), "error:503".to_owned()));
        check("", Lead::Nowhere);
        check("mail.send", jobs("handler:mail.send"));
        check("mail.*", jobs("handler:mail.*"));
        check("mail", jobs("handler:mail*"));
        check("resize", jobs("handler:images.resize"));
        check("dead", jobs("status:dead"));
        check("root", jobs("tenant:root"));
        check("0190b3a2-7c1e-7000-8000-000000000001", jobs("tenant:0190b3a2-7c1e-7000-8000-000000000001"));
        check("status:dead -handler:demo.*", jobs("status:dead -handler:demo.*"));
        check("93b70a2ba4d00a2f", failures("signature:93b70a2ba4d00a2f"));
        check("connection refused", failures("error:\"connection refused\""));
        check("smtp: 421 \"busy\"", failures("error:\"smtp: 421 \\\"busy\\\"\""));
        check("timeout", failures("error:timeout"));
    }

    /// A mistake in a filter is explained by the list, and not looked for as an error.
    #[test]
    fn a_filter_with_a_mistake_stays_one() {
        check("status:daed", jobs("status:daed"));
        check("handler:a attempt>x", jobs("handler:a attempt>x"));
        check("hanlder:mail", failures("error:hanlder:mail"));
    }
}
