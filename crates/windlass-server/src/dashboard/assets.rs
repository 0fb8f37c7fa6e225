//! The stylesheet, the script and the icon, compiled in. Their names carry a hash of their content, so that browsers may
//! keep them for ever and never use an old one with a new page.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

struct Asset {
    /// The path below the mount point.
    path: String,
    kind: &'static str,
    text: &'static str,
}

static CSS: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("dashboard", "css", "text/css; charset=utf-8", include_str!("assets/dashboard.css")));
static JS: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("dashboard", "js", "text/javascript; charset=utf-8", include_str!("assets/dashboard.js"))
});
static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("windlass", "svg", "image/svg+xml", include_str!("assets/windlass.svg")));

impl Asset {
    fn new(name: &str, extension: &str, kind: &'static str, text: &'static str) -> Self {
        let mut hash = String::new();
        // 64 bits tell two versions of a file apart; nobody attacks their own stylesheet.
        for byte in Sha256::digest(text.as_bytes()).iter().take(8) {
            let _ = write!(hash, "{byte:02x}");
        }
        Asset { path: format!("/assets/{name}.{hash}.{extension}"), kind, text }
    }
}

/// Where the stylesheet is.
pub(crate) fn css_path() -> String {
    CSS.path.clone()
}

/// Where the script is.
pub(crate) fn js_path() -> String {
    JS.path.clone()
}

/// Where the icon is.
pub(crate) fn icon_path() -> String {
    ICON.path.clone()
}

/// Answers with one of them. They are the same for everyone and hold no data, so they need no login.
pub(crate) async fn serve(Path(name): Path<String>) -> Response {
    let wanted = format!("/assets/{name}");
    match [&*CSS, &*JS, &*ICON].into_iter().find(|asset| asset.path == wanted) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.kind),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            (headers, asset.text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_content() {
        let one = Asset::new("a", "css", "text/css", "a{}");
        let other = Asset::new("a", "css", "text/css", "b{}");
        assert_ne!(one.path, other.path);
        assert_eq!(one.path.len(), "/assets/a.0123456789abcdef.css".len());
    }

    /// The content security policy allows no other host, and neither file asks for one (reliability.md 8.8).
    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        for text in [CSS.text, JS.text] {
            assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("//cdn"));
            assert!(!text.contains("@import") && !text.contains("eval(") && !text.contains("innerHTML"));
        }
    }
}
