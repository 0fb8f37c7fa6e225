//! The addresses of the dashboard's own pages. Called by every view. Puts names of
//! users into the query, percent-encoded, so that `/` and `..` in them mean nothing; only that of a schedule, which is
//! never `..`, is a step of a path, encoded too.

use windlass_core::JobId;

/// Where the dashboard is mounted, and the addresses below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Urls {
    base: String,
}

impl Urls {
    /// Below `base`, which is empty or starts with a slash; a slash at its end is dropped.
    pub(crate) fn new(base: &str) -> Self {
        Urls { base: base.trim_end_matches('/').to_owned() }
    }

    /// The mount point itself: empty at the root.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The path of a cookie that only this dashboard needs.
    pub(crate) fn cookie_path(&self) -> String {
        format!("{}/", self.base)
    }

    /// A page by its path, which starts with a slash.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A page with a query. Empty values are left out.
    pub(crate) fn query(&self, path: &str, pairs: &[(&str, &str)]) -> String {
        let mut url = self.path(path);
        let set = pairs.iter().filter(|(_, value)| !value.is_empty());
        for (index, (name, value)) in set.enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.push_str(name);
            url.push('=');
            url.push_str(&encode(value));
        }
        url
    }

    /// The page of a job.
    pub(crate) fn job(&self, id: JobId) -> String {
        self.path(&format!("/jobs/{id}"))
    }

    /// A job's action or sub-page.
    pub(crate) fn of_job(&self, id: JobId, what: &str) -> String {
        self.path(&format!("/jobs/{id}/{what}"))
    }

    /// The jobs that pass a filter.
    pub(crate) fn jobs(&self, filter: &str) -> String {
        self.query("/jobs", &[("q", filter)])
    }

    /// Whether `path` is a page of this dashboard, so that a redirect to it leads nowhere else.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix(&self.base) else { return false };
        // `//host` and `/\host` are other hosts to a browser; control characters could end a header.
        let leads_away = rest.starts_with("//") || rest.starts_with("/\\") || rest.contains('\\');
        rest.starts_with('/') && !leads_away && !rest.bytes().any(|byte| byte.is_ascii_control())
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// One term of a filter, quoted where its value needs it.
pub(crate) fn term(name: &str, value: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.:/@+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return format!("{name}:{value}");
    }
    format!("{name}:\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_query() {
        let urls = Urls::new("/ops/");
        assert_eq!(
            urls.query("/jobs", &[("q", "handler:../../x?a=1&b#c"), ("cols", "")]),
            "/ops/jobs?q=handler%3A..%2F..%2Fx%3Fa%3D1%26b%23c"
        );
        assert_eq!(urls.job(JobId::from_i64(7)), "/ops/jobs/7");
    }

    #[test]
    fn redirects_stay_below_the_base_path() {
        let urls = Urls::new("/ops");
        for own in ["/ops/", "/ops/jobs?q=a", "/ops/jobs/7#log"] {
            assert!(urls.is_own(own), "{own}");
        }
        for other in [
            "/",
            "/jobs",
            "/ops",
            "/opsy/",
            "//evil.example",
            "/ops//evil.example",
            "https://evil.example",
            "/ops/\\evil",
            "/ops/\r\nSet-Cookie: a",
            "",
        ] {
            assert!(!urls.is_own(other), "{other:?}");
        }
        assert!(Urls::new("").is_own("/jobs"));
        assert!(!Urls::new("").is_own("//evil.example"));
    }

    #[test]
    fn values_of_terms_are_quoted_where_needed() {
        assert_eq!(term("handler", "mail.send"), "handler:mail.send");
        assert_eq!(term("error", "timed \"out\" \\"), "error:\"timed \\\"out\\\" \\\\\"");
        assert_eq!(term("tag", ""), "tag:\"\"");
    }
}
