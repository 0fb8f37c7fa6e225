//! What every page has around its content: head, navigation, banners, dialogs. Called by the routes, which fill it from
//! the request. Knows nothing of jobs.

use maud::{DOCTYPE, Markup, html};
use windlass_core::store::Pause;
use windlass_core::{TenantId, Timestamp};

use super::assets;
use super::components::{self, Act};
use super::urls::Urls;

/// One request's view of the dashboard: where it is mounted, who looks, and what page it is.
#[derive(Clone, Debug)]
pub(crate) struct Shell {
    /// Addresses.
    pub(crate) urls: Urls,
    /// The store's time.
    pub(crate) now: Timestamp,
    /// Dark, light, or as the system says.
    pub(crate) theme: Theme,
    /// Who looks.
    pub(crate) viewer: Viewer,
    /// The path and query of this page, to come back to.
    pub(crate) here: String,
    /// What the last action did.
    pub(crate) flash: Option<String>,
    /// The pause of everything, if it is in force.
    pub(crate) paused: Option<Pause>,
}

/// Who looks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Viewer {
    /// Their name.
    pub(crate) user: String,
    /// The tenant they look at; every tenant's if none.
    pub(crate) tenant: Option<TenantId>,
    /// Whether they may look at every tenant.
    pub(crate) all_tenants: bool,
    /// What they may do here.
    pub(crate) may: May,
    /// Whether the server refuses every change, whoever asks.
    pub(crate) read_only: bool,
    /// Whether they have a session that can be ended.
    pub(crate) has_session: bool,
}

/// Rights, as far as pages differ by them. None but reading in read-only mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct May {
    /// Submit jobs.
    pub(crate) submit: bool,
    /// Cancel, retry, edit, pause.
    pub(crate) operate: bool,
    /// Keys, webhooks, quotas.
    pub(crate) admin: bool,
    /// See inputs and results.
    pub(crate) payload: bool,
}

/// Dark, light, or as the system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Theme {
    /// As the system says.
    #[default]
    Auto,
    /// Always light.
    Light,
    /// Always dark.
    Dark,
}

impl Theme {
    /// From a cookie or form; anything unknown is as the system says.
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "light" => Theme::Light,
            "dark" => Theme::Dark,
            _ => Theme::Auto,
        }
    }

    /// The stable name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Theme::Auto => "auto",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }
}

/// The entries of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Overview,
    Jobs,
    Failures,
    Dead,
    Schedules,
    Handlers,
    Tenants,
    Nodes,
    Audit,
    Keys,
    Webhooks,
    Submit,
    /// A page that the navigation does not list.
    Elsewhere,
}

struct Entry {
    place: Place,
    path: &'static str,
    name: &'static str,
    icon: &'static str,
    /// The key after `g` that goes there.
    key: &'static str,
}

const ENTRIES: [Entry; 12] = [
    Entry { place: Place::Overview, path: "/", name: "Overview", icon: "overview", key: "o" },
    Entry { place: Place::Jobs, path: "/jobs", name: "Jobs", icon: "jobs", key: "j" },
    Entry { place: Place::Failures, path: "/failures", name: "Failures", icon: "failures", key: "f" },
    Entry { place: Place::Dead, path: "/dead", name: "Dead letters", icon: "dead", key: "d" },
    Entry { place: Place::Schedules, path: "/schedules", name: "Schedules", icon: "schedules", key: "c" },
    Entry { place: Place::Handlers, path: "/handlers", name: "Handlers", icon: "handlers", key: "h" },
    Entry { place: Place::Tenants, path: "/tenants", name: "Tenants", icon: "tenants", key: "t" },
    Entry { place: Place::Nodes, path: "/nodes", name: "Nodes", icon: "nodes", key: "n" },
    Entry { place: Place::Audit, path: "/audit", name: "Audit", icon: "audit", key: "a" },
    Entry { place: Place::Keys, path: "/keys", name: "Keys", icon: "keys", key: "k" },
    Entry { place: Place::Webhooks, path: "/webhooks", name: "Webhooks", icon: "webhooks", key: "w" },
    Entry { place: Place::Submit, path: "/submit", name: "Submit a job", icon: "plus", key: "s" },
];

/// What makes a page move by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// Look again after so many seconds.
    pub(crate) every_seconds: Option<u32>,
    /// A stream of events that make it look again sooner.
    pub(crate) events: Option<String>,
}

/// A page's own parts.
pub(crate) struct Page<'a> {
    /// Which entry of the navigation is lit.
    pub(crate) place: Place,
    /// The heading and the window's title.
    pub(crate) title: &'a str,
    /// Beside the heading.
    pub(crate) aside: Markup,
    /// The rest.
    pub(crate) content: Markup,
    /// What makes it move.
    pub(crate) live: Live,
}

impl Shell {
    /// The whole document.
    pub(crate) fn page(&self, page: Page<'_>) -> Markup {
        let live = page.live.every_seconds.is_some();
        self.document(
            page.title,
            html! {
                body data-base=(self.urls.base()) data-refresh=[page.live.every_seconds] data-events=[page.live.events] {
                    a.skip href="#main" { "Skip to content" }
                    input #nav-open type="checkbox" aria-label="Show the navigation" {}
                    (self.top_bar())
                    (self.navigation(page.place))
                    main #main tabindex="-1" {
                        (self.banners())
                        header.page-head {
                            h1 { (page.title) }
                            div.page-aside {
                                (page.aside)
                                @if live {
                                    button.live type="button" data-live-toggle hidden title="Pause live updates (p)" {
                                        span.live-dot {} span.live-text { "live" }
                                    }
                                }
                            }
                        }
                        (page.content)
                    }
                    (dialogs(&self.urls))
                }
            },
        )
    }

    /// A page without navigation, for who is not logged in.
    pub(crate) fn bare(&self, title: &str, content: Markup) -> Markup {
        self.document(title, html! { body.bare { main #main { (content) } } })
    }

    fn document(&self, title: &str, body: Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" data-theme=(self.theme.as_str()) {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="robots" content="noindex";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · Windlass" }
                    link rel="icon" type="image/svg+xml" href=(self.urls.path(&assets::icon_path()));
                    link rel="stylesheet" href=(self.urls.path(&assets::css_path()));
                    script src=(self.urls.path(&assets::js_path())) defer {}
                }
                (body)
            }
        }
    }

    fn top_bar(&self) -> Markup {
        html! {
            header.top-bar {
                label.menu-button for="nav-open" { (components::icon("menu")) }
                a.brand href=(self.urls.path("/")) { (components::icon("windlass")) "Windlass" }
                a.button.small href=(self.urls.path("/find")) data-find aria-label="Find" { (components::icon("search")) }
                a.button.small href=(self.urls.path("/submit")) hidden[!self.viewer.may.submit] { (components::icon("plus")) "Submit" }
            }
        }
    }

    fn navigation(&self, place: Place) -> Markup {
        html! {
            nav.side aria-label="Main" {
                a.brand href=(self.urls.path("/")) { (components::icon("windlass")) "Windlass" }
                a.find-open href=(self.urls.path("/find")) data-find title="Find a job, a handler or an error (/ or Ctrl K)" {
                    (components::icon("search")) span { "Find" } kbd { "/" }
                }
                ul {
                    @for entry in ENTRIES.iter().filter(|entry| self.shows(entry.place)) {
                        li {
                            a href=(self.urls.path(entry.path)) data-key=(entry.key)
                                aria-current=[(entry.place == place).then_some("page")] {
                                (components::icon(entry.icon)) (entry.name)
                            }
                        }
                    }
                    li { a href=(self.urls.path("/docs")) { (components::icon("docs")) "API" } }
                }
                div.side-foot {
                    (self.tenant_switch())
                    div.who {
                        span.who-name title=(self.viewer.user) { (components::icon("user")) (self.viewer.user) }
                        @if self.viewer.has_session {
                            form method="post" action=(self.urls.path("/logout")) {
                                button.quiet type="submit" title="Log out" aria-label="Log out" { (components::icon("logout")) }
                            }
                        }
                    }
                    div.side-tools {
                        form.theme method="post" action=(self.urls.path("/theme")) data-theme-form {
                            input type="hidden" name="back" value=(self.here);
                            @for theme in [Theme::Auto, Theme::Light, Theme::Dark] {
                                button type="submit" name="theme" value=(theme.as_str()) title={ "Colours: " (theme.as_str()) }
                                    aria-label={ "Colours: " (theme.as_str()) } aria-pressed=(self.theme == theme) {
                                    (components::icon(theme.as_str()))
                                }
                            }
                        }
                        button.quiet type="button" data-help hidden title="Keyboard shortcuts (?)" { kbd { "?" } }
                    }
                }
            }
        }
    }

    /// Entries that would only answer with a refusal are left out; the routes refuse all the same.
    fn shows(&self, place: Place) -> bool {
        match place {
            Place::Nodes => self.viewer.all_tenants,
            Place::Keys | Place::Webhooks => self.viewer.may.admin,
            Place::Submit => self.viewer.may.submit,
            _ => true,
        }
    }

    fn tenant_switch(&self) -> Markup {
        let tenant = self.viewer.tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        html! {
            @if self.viewer.all_tenants {
                form.tenant-switch method="post" action=(self.urls.path("/tenant")) {
                    input type="hidden" name="back" value=(self.here);
                    label for="tenant" { "Tenant" }
                    div.joined {
                        input #tenant.mono name="tenant" value=(tenant) placeholder="all tenants" autocomplete="off"
                            spellcheck="false" list="known-tenants" aria-describedby="tenant-note";
                        button type="submit" title="Show only this tenant" aria-label="Show only this tenant" { (components::icon("check")) }
                    }
                    span #tenant-note.sr { "Empty for all tenants" }
                }
            } @else if !tenant.is_empty() {
                p.tenant-own title=(tenant) { "Tenant " span.mono { (components::short_tenant(&tenant)) } }
            }
        }
    }

    fn banners(&self) -> Markup {
        html! {
            @if let Some(flash) = &self.flash {
                p.banner.good role="status" data-flash { (components::icon("check")) span { (flash) } }
            }
            @if self.viewer.read_only {
                p.banner.note { (components::icon("lock")) span { "Read-only: this server accepts no changes." } }
            }
            @if let Some(pause) = &self.paused {
                div.banner.warn {
                    (components::icon("pause"))
                    span {
                        b { "Everything is paused" } " by " (pause.by) ", " (components::time(pause.at, self.now))
                        @if !pause.reason.is_empty() { ": " (pause.reason) }
                    }
                    @if self.viewer.may.operate {
                        (Act::new(self, "/resume", "Resume").icon("play").hidden("target", "all").back().confirm("Start jobs again, of every handler and tenant?"))
                    }
                }
            }
        }
    }
}

/// What can be typed into the box.
const SUCH: [&str; 5] =
    ["6237184712970240", "mail.send", "mail.*", "connection refused", "status:dead -handler:demo.*"];

/// The one box: what is typed leads to a job, to the jobs of a handler, to an error, or to a filtered list.
pub(crate) fn find_form(urls: &Urls, typed: &str) -> Markup {
    html! {
        form.find method="get" action=(urls.path("/find")) role="search" {
            (components::icon("search"))
            input type="search" name="q" value=(typed) required autofocus autocomplete="off" spellcheck="false" autocapitalize="off"
                aria-label="Find" placeholder="job id, handler, error text, or a filter";
            button.primary type="submit" { "Find" }
            p.hint { @for such in SUCH { code { (such) } } }
        }
    }
}

fn dialogs(urls: &Urls) -> Markup {
    let rows: [(&[&str], &str); 10] = [
        (&["?"], "this help"),
        (&["/", "Ctrl K"], "find a job, a handler, an error"),
        (&["f"], "filter this list"),
        (&["j", "k"], "next, previous row"),
        (&["Enter"], "open the row"),
        (&["x"], "select the row"),
        (&["n"], "show new rows"),
        (&["p"], "pause live updates"),
        (&["c"], "copy the job's id"),
        (&["Esc"], "close, leave the field"),
    ];
    html! {
        dialog #confirm aria-labelledby="confirm-text" {
            form method="dialog" {
                h2 #confirm-title { "Are you sure?" }
                p #confirm-text {}
                div.buttons {
                    button type="submit" value="no" { "No" }
                    button.primary #confirm-yes type="submit" value="yes" { "Yes" }
                }
            }
        }
        dialog #find aria-label="Find" { (find_form(urls, "")) }
        dialog #help aria-labelledby="help-title" {
            form method="dialog" {
                h2 #help-title { "Keyboard" }
                div.help-grid {
                    dl.keys { @for (keys, what) in rows { dt { @for key in keys { kbd { (key) } } } dd { (what) } } }
                    dl.keys { @for entry in &ENTRIES { dt { kbd { "g" } kbd { (entry.key) } } dd { a href=(urls.path(entry.path)) { (entry.name) } } } }
                }
                div.buttons { button.primary type="submit" { "Close" } }
            }
        }
    }
}
