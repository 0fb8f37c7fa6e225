//! The dashboard: pages rendered on the server, one small script, no request to any other host. Mounted by the server's
//! router. Does nothing that the API cannot do, and asks the same service for it.
//!
//! `views` are pure functions from data to HTML. `pages` load what views show, `acts` carry out what forms ask for; both
//! get an [`ask::Ask`], which knows who asks.

mod acts;
mod ask;
mod assets;
mod chart;
mod diagnose;
mod did;
mod pages;
mod parts;
mod past;
mod people;
mod shell;
mod urls;
mod views;
mod words;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

pub(crate) use people::for_people;

use crate::App;
use crate::auth::Need;
use crate::routes;

/// The pages, each behind what it needs.
pub(crate) fn router(app: &App) -> Router<App> {
    let router = Router::new().route("/assets/{name}", get(assets::serve)).route("/login", get(pages::login));
    let add = |router: Router<App>, (path, need, methods)| router.route(path, guarded(app, need, methods));
    table().into_iter().fold(router, add)
}

fn guarded(app: &App, need: Need, methods: MethodRouter<App>) -> MethodRouter<App> {
    // Inside the guard, so that a page that cannot be shown still knows who asked for it.
    routes::page(app, need, methods.layer(from_fn_with_state(app.clone(), people::dressed)))
}

/// Every page and every form, with what who asks for it must have: the same as the API's route for the same thing.
fn table() -> Vec<(&'static str, Need, MethodRouter<App>)> {
    vec![
        ("/", Need::READ, get(pages::overview)),
        ("/jobs", Need::READ, get(pages::jobs)),
        ("/jobs/{id}", Need::READ, get(pages::job)),
        ("/jobs/{id}/cancel", Need::OPERATE, post(acts::cancel)),
        ("/jobs/{id}/retry", Need::OPERATE, post(acts::retry)),
        ("/jobs/{id}/run-now", Need::OPERATE, post(acts::run_now)),
        ("/jobs/{id}/reschedule", Need::OPERATE, post(acts::reschedule)),
        ("/jobs/{id}/priority", Need::OPERATE, post(acts::reprioritise)),
        ("/jobs/{id}/purge", Need::OPERATE, post(acts::purge)),
        ("/jobs/{id}/edit", Need::OPERATE, get(pages::edit).post(acts::edit)),
        ("/jobs/{id}/clone", Need::CLONE, get(pages::clone).post(acts::clone)),
        ("/bulk", Need::OPERATE, get(pages::bulk).post(acts::bulk)),
        ("/bulk/{id}", Need::READ, get(pages::bulk_progress)),
        ("/bulk/{id}/stop", Need::OPERATE, post(acts::bulk_stop)),
        ("/failures", Need::READ, get(pages::failures)),
        ("/dead", Need::READ, get(pages::dead)),
        ("/handlers", Need::READ, get(pages::handlers)),
        ("/tenants", Need::READ, get(pages::tenants)),
        ("/tenants/quota", Need::ADMIN_ALL, post(acts::set_quota)),
        ("/tenants/quota/clear", Need::ADMIN_ALL, post(acts::clear_quota)),
        ("/nodes", Need::READ_ALL, get(pages::nodes)),
        ("/audit", Need::READ, get(pages::audit)),
        ("/keys", Need::ADMIN, get(pages::keys).post(acts::create_key)),
        ("/keys/revoke", Need::ADMIN, post(acts::revoke_key)),
        ("/webhooks", Need::ADMIN, get(pages::webhooks).post(acts::add_hook)),
        ("/webhooks/remove", Need::ADMIN, post(acts::remove_hook)),
        ("/submit", Need::SUBMIT, get(pages::submit).post(acts::submit)),
        ("/pause", Need::OPERATE, post(acts::pause)),
        ("/resume", Need::OPERATE, post(acts::resume)),
        ("/theme", Need::ANY, post(acts::theme)),
        ("/tenant", Need::ANY, post(acts::tenant)),
    ]
}
