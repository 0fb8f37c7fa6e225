//! Which page a login leads to: the one that was asked for before it. Kept in a short-lived cookie, so that the form and
//! the one-time link both lead there. Called by the guard of pages and by both logins. Leads to pages of this dashboard and
//! nowhere else, whatever the cookie says.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{DOCTYPE, html};

use super::session::cookie;
use crate::App;
use crate::dashboard::{Urls, icon_path};

const COOKIE: &str = "windlass_next";

/// Long enough to fetch a key or a login link; after that, the overview is as good.
const LASTS: Duration = Duration::from_secs(10 * 60);

/// Bytes of an address that is kept: every link that pages make is shorter, and a browser keeps cookies of 4 KiB only.
const MOST: usize = 2_048;

/// Sends who is not logged in to the login, and keeps what was asked for.
///
/// A browser does not send the session along when another site leads here, because its cookie is `Strict`. Such a request
/// is first asked again from a page of our own, so that a link in a message opens for who has a session.
pub(super) fn to_login(app: &App, asked: &Uri, headers: &HeaderMap) -> Response {
    let urls = Urls::new(&app.config.base_path);
    let page = address(&urls, asked);
    let from = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_led_here = from("sec-fetch-site") == Some("cross-site") && from("sec-fetch-dest") == Some("document");
    if let Some(page) = page.as_ref().filter(|_| is_led_here) {
        return (StatusCode::OK, ask_again(&urls, page)).into_response();
    }
    let mut response = Redirect::to(&urls.path("/login")).into_response();
    if let Some(page) = page.filter(|page| *page != urls.path("/")) {
        set(app, &mut response, &URL_SAFE_NO_PAD.encode(page), LASTS);
    }
    response
}

/// Goes to the page that was asked for before the login, or to the overview.
pub(super) fn follow(app: &App, headers: &HeaderMap) -> Response {
    let urls = Urls::new(&app.config.base_path);
    let kept = cookie(headers, COOKIE);
    let page = kept.and_then(|kept| URL_SAFE_NO_PAD.decode(kept).ok()).and_then(|page| String::from_utf8(page).ok());
    let page = page.filter(|page| urls.is_own(page) && page.is_ascii());
    let mut response = Redirect::to(&page.unwrap_or_else(|| urls.path("/"))).into_response();
    if kept.is_some() {
        set(app, &mut response, "", Duration::ZERO);
    }
    response
}

/// The page of ours that was asked for.
fn address(urls: &Urls, asked: &Uri) -> Option<String> {
    // Mounted below a path, the router has taken that path off already.
    let path = asked.path().strip_prefix(urls.base()).filter(|_| !urls.base().is_empty()).unwrap_or(asked.path());
    let query = asked.query().map(|query| format!("?{query}")).unwrap_or_default();
    let page = urls.path(&format!("{path}{query}"));
    Some(page).filter(|page| page.len() <= MOST && urls.is_own(page))
}

fn ask_again(urls: &Urls, page: &str) -> maud::Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0; url=" (page) };
                title { "Windlass" }
                link rel="icon" type="image/svg+xml" href=(urls.path(&icon_path()));
            }
            body { a href=(page) { "Continue" } }
        }
    }
}

fn set(app: &App, response: &mut Response, value: &str, lasts: Duration) {
    let secure = if app.config.secure_cookies() { "; Secure" } else { "" };
    let path = Urls::new(&app.config.base_path).cookie_path();
    let seconds = lasts.as_secs();
    let text = format!("{COOKIE}={value}; Path={path}; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_ours_are_kept() {
        let kept = |base: &str, uri: &str| address(&Urls::new(base), &uri.parse().expect("an address"));
        assert_eq!(kept("", "/jobs/7?show=input"), Some("/jobs/7?show=input".into()));
        assert_eq!(kept("/ops", "/jobs?q=tag%3Aa"), Some("/ops/jobs?q=tag%3Aa".into()));
        assert_eq!(kept("/ops", "/ops/jobs"), Some("/ops/jobs".into()));
        assert_eq!(kept("", "//evil.example/x"), None);
        assert_eq!(kept("", &format!("/jobs?q={}", "a".repeat(MOST))), None);
    }
}
