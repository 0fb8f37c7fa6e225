//! The dashboard: pages rendered on the server, one small script, no request to any other host. Mounted by the server's
//! router. Does nothing that the API cannot do, and asks the same service for it.
//!
//! `views` are pure functions from data to HTML. `pages` load what views show, `actions` carry out what forms ask for; both
//! get a [`request::PageRequest`], which knows who asks.

mod actions;
mod activity;
mod assets;
mod chart;
mod components;
mod diagnose;
mod error_pages;
mod find;
mod format;
mod notices;
mod pages;
mod request;
mod schedules;
mod shell;
mod strip;
mod urls;
mod views;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

pub(crate) use assets::icon_path;
pub(crate) use error_pages::for_people;
pub(crate) use urls::Urls;

use crate::App;
use crate::auth::Need;
use crate::routes;

/// The pages, each behind the rights it needs.
pub(crate) fn router(app: &App) -> Router<App> {
    let router = Router::new().route("/assets/{name}", get(assets::serve)).route("/login", get(pages::login));
    let add = |router: Router<App>, (path, need, methods)| router.route(path, guarded(app, need, methods));
    table().into_iter().fold(router, add)
}

fn guarded(app: &App, need: Need, methods: MethodRouter<App>) -> MethodRouter<App> {
    // Inside the guard, so that a page that cannot be shown still knows who asked for it.
    routes::page(app, need, methods.layer(from_fn_with_state(app.clone(), error_pages::dressed)))
}

/// Every page and form, with the rights its caller needs: the same as the API's route for the same thing.
fn table() -> Vec<(&'static str, Need, MethodRouter<App>)> {
    vec![
        ("/", Need::READ, get(pages::overview)),
        ("/find", Need::READ, get(pages::find)),
        ("/jobs", Need::READ, get(pages::jobs)),
        ("/jobs/{id}", Need::READ, get(pages::job)),
        ("/jobs/{id}/cancel", Need::OPERATE, post(actions::cancel)),
        ("/jobs/{id}/retry", Need::OPERATE, post(actions::retry)),
        ("/jobs/{id}/run-now", Need::OPERATE, post(actions::run_now)),
        ("/jobs/{id}/reschedule", Need::OPERATE, post(actions::reschedule)),
        ("/jobs/{id}/priority", Need::OPERATE, post(actions::reprioritise)),
        ("/jobs/{id}/purge", Need::OPERATE, post(actions::purge)),
        ("/jobs/{id}/edit", Need::OPERATE, get(pages::edit).post(actions::edit)),
        ("/jobs/{id}/clone", Need::CLONE, get(pages::clone).post(actions::clone)),
        ("/bulk", Need::OPERATE, get(pages::bulk).post(actions::bulk)),
        ("/bulk/{id}", Need::READ, get(pages::bulk_progress)),
        ("/bulk/{id}/stop", Need::OPERATE, post(actions::bulk_stop)),
        ("/failures", Need::READ, get(pages::failures)),
        ("/dead", Need::READ, get(pages::dead)),
        ("/handlers", Need::READ, get(pages::handlers)),
        ("/tenants", Need::READ, get(pages::tenants)),
        ("/tenants/quota", Need::ADMIN_ALL, post(actions::set_quota)),
        ("/tenants/quota/clear", Need::ADMIN_ALL, post(actions::clear_quota)),
        ("/nodes", Need::READ_ALL, get(pages::nodes)),
        ("/audit", Need::READ, get(pages::audit)),
        ("/keys", Need::ADMIN, get(pages::keys).post(actions::create_key)),
        ("/keys/revoke", Need::ADMIN, post(actions::revoke_key)),
        ("/webhooks", Need::ADMIN, get(pages::webhooks).post(actions::add_hook)),
        ("/webhooks/remove", Need::ADMIN, post(actions::remove_hook)),
        ("/webhooks/pause", Need::ADMIN, post(actions::pause_hook)),
        ("/webhooks/resume", Need::ADMIN, post(actions::resume_hook)),
        ("/submit", Need::SUBMIT, get(pages::submit).post(actions::submit)),
        ("/schedules", Need::READ, get(schedules::list)),
        ("/schedules", Need::OPERATE, post(schedules::put)),
        ("/schedules/{name}", Need::READ, get(schedules::one)),
        ("/schedules/{name}/edit", Need::OPERATE, get(schedules::edit)),
        ("/schedules/{name}/pause", Need::OPERATE, post(schedules::pause)),
        ("/schedules/{name}/resume", Need::OPERATE, post(schedules::resume)),
        ("/schedules/{name}/trigger", Need::OPERATE, post(schedules::trigger)),
        ("/schedules/{name}/remove", Need::OPERATE, post(schedules::remove)),
        ("/pause", Need::OPERATE, post(actions::pause)),
        ("/resume", Need::OPERATE, post(actions::resume)),
        ("/theme", Need::ANY, post(actions::theme)),
        ("/tenant", Need::ANY, post(actions::tenant)),
    ]
}
