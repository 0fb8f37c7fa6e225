//! Files below one directory, named by jobs. Paths are checked as text first (pure), then opened by `cap-std`, which
//! follows no link and no `..` out of the directory. Tenants other than the root one have a directory each.

use std::io;
use std::path::Path;
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use windlass_core::{InvalidInput, JobError, TenantId};

/// What is kept here while it is not finished; no job may name it.
pub(crate) const HIDDEN: &str = ".windlass";

/// The longest path: enough for any tree that people made, and below every system's limit.
const PATH_BYTES: usize = 1024;
/// The longest name that file systems take.
const NAME_BYTES: usize = 255;

/// Names that are devices on Windows, in every directory and with every extension.
const DEVICES: [&str; 22] = [
    "con", "prn", "aux", "nul", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9", "lpt1", "lpt2",
    "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
];

/// A directory that jobs may use.
#[derive(Clone, Debug)]
pub(crate) struct Root(Arc<Dir>);

impl Root {
    /// Opens a directory, and creates it if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        std::fs::create_dir_all(path)?;
        Ok(Root(Arc::new(Dir::open_ambient_dir(path, ambient_authority())?)))
    }

    /// The directory of a tenant, created if it is missing: nobody overwrites or reads what belongs to another.
    pub(crate) fn of(&self, tenant: TenantId) -> io::Result<Arc<Dir>> {
        if tenant == TenantId::ROOT {
            return Ok(self.0.clone());
        }
        let name = tenant.to_string();
        match self.0.create_dir(&name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Arc::new(self.0.open_dir(&name)?))
    }

    /// The directories of all tenants that have one, at most `limit`.
    #[cfg(feature = "download")]
    pub(crate) fn all(&self, limit: usize) -> io::Result<Vec<Arc<Dir>>> {
        let mut found = vec![self.0.clone()];
        for entry in self.0.entries()?.take(limit) {
            let entry = entry?;
            let is_tenant = entry.file_name().to_str().is_some_and(is_tenant);
            if is_tenant && entry.file_type()?.is_dir() {
                found.push(Arc::new(entry.open_dir()?));
            }
        }
        Ok(found)
    }
}

/// Fails unless `path` is a plain relative path: names separated by `/`, none of which means anything special on any
/// system.
pub(crate) fn check_path(field: &str, path: &str) -> Result<(), InvalidInput> {
    let bad = |message: &str| Err(InvalidInput::new(field, message));
    if path.is_empty() || path.len() > PATH_BYTES {
        return bad("it must have 1 to 1024 bytes");
    }
    if path.starts_with('/') {
        return bad("it must be relative to the handler's directory, so it cannot begin with `/`");
    }
    if path.chars().any(|c| c.is_control() || matches!(c, '\\' | ':')) {
        return bad("it must not contain `\\`, `:` or control characters; separate names with `/`");
    }
    for name in path.split('/') {
        if name.is_empty() || name == "." || name == ".." {
            return bad("it must not contain empty names, `.` or `..`");
        }
        if name.len() > NAME_BYTES || name.ends_with(['.', ' ']) || is_device(name) {
            return bad("each name must have at most 255 bytes, not end with a dot or space, and not be a device");
        }
    }
    let first = path.split('/').next().unwrap_or_default();
    match first.eq_ignore_ascii_case(HIDDEN) || is_tenant(first) {
        true => bad("its first name is reserved: `.windlass` and ids of tenants cannot be used"),
        false => Ok(()),
    }
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    DEVICES.iter().any(|device| stem.eq_ignore_ascii_case(device))
}

fn is_tenant(name: &str) -> bool {
    TenantId::parse(name).is_ok()
}

/// What went wrong on the disk. A path that leads outside, or over something that is no directory, stays wrong.
pub(crate) fn disk(what: &str, error: &io::Error) -> JobError {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, StorageFull};
    let message = format!("{what}: {error}");
    match error.kind() {
        PermissionDenied => JobError::terminal("file_denied", message),
        NotFound => JobError::terminal("file_missing", message),
        IsADirectory | NotADirectory | InvalidInput => JobError::terminal("bad_path", message),
        StorageFull => JobError::new("disk_full", message),
        _ => JobError::new("disk", message),
    }
}

/// Does what may block on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(JobError::new("disk", "the work on the disk was stopped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// HND-1: the traversal corpus (S14).
    #[test]
    fn no_path_leads_out() {
        let outside = [
            "",
            "/",
            "/etc/passwd",
            "//host/share",
            "..",
            "../x",
            "a/../../x",
            "a/..",
            "./x",
            "a//b",
            "a/",
            "a/./b",
            "..\\x",
            "a\\..\\..\\x",
            "C:\\x",
            "C:x",
            "\\\\?\\C:\\x",
            "file:///etc/passwd",
            "x:stream",
            "a\0b",
            "a\nb",
            "nul",
            "NUL.txt",
            "a/con",
            "Com1",
            "lpt9.log",
            "name.",
            "name ",
            ".windlass",
            ".windlass/7.part",
            ".WINDLASS/7.part",
            "00000000-0000-0000-0000-000000000000/x",
            "0199a1a0-0000-7000-8000-000000000001/x",
        ];
        for path in outside {
            assert!(check_path("to", path).is_err(), "{path:?}");
        }
        assert!(check_path("to", &"a".repeat(256)).is_err() && check_path("to", &"a/".repeat(600)).is_err());
        for path in ["a", "a.bin", "a/b/c.tar.gz", "…/ü.txt", "..a", "a..b", ".hidden", "console", "a b"] {
            assert!(check_path("to", path).is_ok(), "{path:?}");
        }
    }

    proptest! {
        /// HND-1: whatever passes stays below any directory it is joined to.
        #[test]
        fn what_passes_stays_below(path in "[a-zA-Z0-9./\\\\: \u{0}-\u{1f}~_-]{0,40}") {
            if check_path("to", &path).is_ok() {
                let plain = Path::new(&path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
                prop_assert!(plain && !path.starts_with('/') && !path.contains(".windlass"), "{path:?}");
            }
        }
    }

    /// HND-1: a link that leads out is not followed, whoever made it.
    #[cfg(unix)]
    #[test]
    fn links_that_lead_out_are_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (place.path().join("in"), place.path().join("out"));
        std::fs::create_dir_all(&outside).expect("make");
        let root = Root::open(&inside).expect("opens");
        std::os::unix::fs::symlink(&outside, inside.join("link")).expect("link");
        std::os::unix::fs::symlink("/etc", inside.join("absolute")).expect("link");
        let dir = root.of(TenantId::ROOT).expect("opens");
        for path in ["link/x", "absolute/x"] {
            let error = dir.create(path).expect_err("refused");
            assert!(!disk("open", &error).is_retryable(), "{error}");
        }
        assert!(std::fs::read_dir(&outside).expect("list").next().is_none());
    }

    /// HND-1: tenants have a directory each.
    #[test]
    fn tenants_do_not_share_a_directory() {
        let place = tempfile::tempdir().expect("a directory");
        let root = Root::open(place.path()).expect("opens");
        let acme = TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID");
        root.of(TenantId::ROOT).expect("opens").write("x", "root").expect("writes");
        root.of(acme).expect("opens").write("x", "acme").expect("writes");
        assert_eq!(std::fs::read_to_string(place.path().join("x")).expect("reads"), "root");
        assert_eq!(std::fs::read_to_string(place.path().join(acme.to_string()).join("x")).expect("reads"), "acme");
    }
}
