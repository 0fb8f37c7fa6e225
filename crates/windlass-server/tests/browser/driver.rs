//! One real Chromium, driven as a person would: clicks, typing, looking at what is shown. Used by every scenario.
//! Waits for what it looks for, never for a fixed time, and knows nothing about jobs.

use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::cookies::Cookie;
use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_testkit::servers::ChromeDriver;

/// How long a page may take to show something. Much more than it ever takes, because tests of other crates share the
/// machine.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// The width of a small laptop's window, and of a phone.
pub(crate) const WIDE: Screen = Screen { width: 1280, height: 860, scale: 1.0, is_phone: false };
pub(crate) const PHONE: Screen = Screen { width: 390, height: 844, scale: 2.0, is_phone: true };

#[derive(Clone, Copy)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
    scale: f64,
    is_phone: bool,
}

pub(crate) struct Browser {
    client: Client,
    /// For what Chromium's driver offers beyond WebDriver.
    http: reqwest::Client,
    session: String,
    // Ends the browser when it is dropped, however the test ends.
    _driver: ChromeDriver,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let driver =
            tokio::task::spawn_blocking(ChromeDriver::start).await.expect("no panic").expect("a driver starts");
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(driver.capabilities())
            .connect(&driver.url())
            .await
            .unwrap_or_else(|error| panic!("no browser: {error}\n{}", driver.log_tail()));
        let id = client.session_id().await.expect("asked").expect("there is a session");
        let session = format!("{}/session/{id}", driver.url());
        let browser = Browser { client, http: reqwest::Client::new(), session, _driver: driver };
        browser.screen(WIDE).await;
        browser
    }

    // ---- going

    /// Opens an address and waits until the page's script has run.
    pub(crate) async fn goto(&self, url: &str) {
        self.open(url).await;
        self.ready().await;
    }

    /// Opens an address whose page has no script.
    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap_or_else(|error| panic!("goto {url}: {error}"));
    }

    /// Waits until a page with the dashboard's script has run it.
    pub(crate) async fn ready(&self) {
        self.until("the page is ready", "document.documentElement.hasAttribute('data-ready')").await;
    }

    pub(crate) async fn back(&self) {
        self.client.back().await.expect("go back");
    }

    /// The path and query of the address.
    pub(crate) async fn here(&self) -> String {
        let url = self.client.current_url().await.expect("the address");
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{query}", url.path())
    }

    /// Waits until the path ends like this.
    pub(crate) async fn arrive(&self, path: &str) {
        self.until(
            &format!("arrival at {path}"),
            &format!(
                "location.pathname.endsWith({}) && document.documentElement.hasAttribute('data-ready')",
                json!(path)
            ),
        )
        .await;
    }

    pub(crate) async fn forget_cookies(&self) {
        self.client.delete_all_cookies().await.expect("forget the cookies");
    }

    /// What makes the browser known to the server whose page is open.
    pub(crate) async fn cookies(&self) -> Vec<Cookie<'static>> {
        self.client.get_all_cookies().await.expect("the cookies")
    }

    /// Only these, for the server whose page is open.
    pub(crate) async fn set_cookies(&self, cookies: &[Cookie<'static>]) {
        self.forget_cookies().await;
        for cookie in cookies {
            self.client.add_cookie(cookie.clone()).await.expect("keep a cookie");
        }
    }

    // ---- doing

    /// Clicks what is found. A page that renews itself may take the element away meanwhile; then it is looked for again.
    pub(crate) async fn click(&self, css: &str) {
        self.act(css, async |element| element.click().await.map(drop)).await;
    }

    /// Lets pages that are opened from now on see a device that can hover. A machine without one has no mouse to point with,
    /// and no command of the driver adds one. Returns what takes it away.
    pub(crate) async fn plug_in_mouse(&self) -> Value {
        let script = "const real = matchMedia.bind(window); window.matchMedia = (query) => \
            query === '(hover: hover)' ? real('all') : real(query);";
        self.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await
    }

    pub(crate) async fn unplug_mouse(&self, mouse: Value) {
        self.devtools("Page.removeScriptToEvaluateOnNewDocument", mouse).await;
    }

    /// Puts the pointer over the middle of what is found.
    pub(crate) async fn point_at(&self, css: &str) {
        let middle = format!(
            "(() => {{ const box = document.querySelector({})?.getBoundingClientRect(); \
             return box && [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(css)
        );
        let middle = self.until(css, &middle).await;
        let moved = json!({ "type": "mouseMoved", "x": middle[0], "y": middle[1] });
        self.devtools("Input.dispatchMouseEvent", moved).await;
    }

    /// Replaces what a field holds.
    pub(crate) async fn fill(&self, css: &str, text: &str) {
        self.act(css, async |element| {
            element.clear().await?;
            element.send_keys(text).await
        })
        .await;
    }

    /// Chooses an entry of a list by its value.
    pub(crate) async fn choose(&self, css: &str, value: &str) {
        self.act(css, async |element| element.select_by_value(value).await.map(drop)).await;
    }

    /// Types keys as if nothing else were touched: into whatever has the focus. On the keyboard, not into an element: what
    /// had the focus when it was looked up may be gone when the keys arrive, such as the button of a dialog that closes.
    /// A modifier is held until the end.
    pub(crate) async fn press(&self, keys: &str) {
        let (down, up) = (|value| KeyAction::Down { value }, |value| KeyAction::Up { value });
        let is_modifier = |key: &char| *key == char::from(Key::Control);
        let press = |actions: KeyActions, key| match is_modifier(&key) {
            true => actions.then(down(key)),
            false => actions.then(down(key)).then(up(key)),
        };
        let pressed = keys.chars().fold(KeyActions::new("keyboard".to_owned()), press);
        let actions = keys.chars().filter(is_modifier).fold(pressed, |actions, key| actions.then(up(key)));
        self.client.perform_actions(actions).await.expect("press keys");
    }

    pub(crate) async fn press_escape(&self) {
        self.press(&char::from(Key::Escape).to_string()).await;
    }

    pub(crate) async fn press_enter(&self) {
        self.press(&char::from(Key::Enter).to_string()).await;
    }

    /// Presses a button that asks first, and says yes.
    pub(crate) async fn click_and_confirm(&self, css: &str) {
        self.click(css).await;
        self.until("the question", "document.querySelector('#confirm').open").await;
        self.click("#confirm-yes").await;
    }

    async fn act<F>(&self, css: &str, act: F)
    where
        F: AsyncFn(Element) -> Result<(), fantoccini::error::CmdError>,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let done = match self.client.find(Locator::Css(css)).await {
                Ok(element) => act(element).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => return,
                Err(error) if Instant::now() > deadline => panic!("{css}: {error}\n{}", self.what_is_shown().await),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    // ---- looking

    /// Waits until a JavaScript expression is truthy and answers its value.
    pub(crate) async fn until(&self, what: &str, expression: &str) -> Value {
        let script = format!("return {expression};");
        let deadline = Instant::now() + PATIENCE;
        loop {
            // While the browser goes from one page to the next there is nothing to ask.
            let value = self.client.execute(&script, Vec::new()).await.unwrap_or(Value::Null);
            if !matches!(value, Value::Null | Value::Bool(false)) && value != json!("") && value != json!(0) {
                return value;
            }
            if Instant::now() > deadline {
                panic!("waited {PATIENCE:?} for {what}: {expression}\n{}", self.what_is_shown().await);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until an element's text holds this.
    pub(crate) async fn until_text(&self, css: &str, text: &str) {
        let expression = format!("document.querySelector({})?.textContent.includes({})", json!(css), json!(text));
        self.until(&format!("`{text}` in {css}"), &expression).await;
    }

    /// The value of a JavaScript expression.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression};");
        self.client.execute(&script, Vec::new()).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The text of an element, once there is one.
    pub(crate) async fn text(&self, css: &str) -> String {
        let value = self.until(css, &format!("document.querySelector({})?.textContent", json!(css))).await;
        value.as_str().unwrap_or_default().trim().to_owned()
    }

    /// How far the page is wider than its window, in pixels; 0 when nothing has to be scrolled sideways.
    pub(crate) async fn overflow(&self) -> i64 {
        let width = self.value("document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
        width.as_i64().unwrap_or_default().max(0)
    }

    async fn what_is_shown(&self) -> String {
        let url = self.client.current_url().await.map(|url| url.to_string()).unwrap_or_default();
        let text = self.client.execute("return document.body.innerText;", Vec::new()).await.unwrap_or_default();
        format!("at {url}:\n{}", text.as_str().unwrap_or_default().chars().take(3_000).collect::<String>())
    }

    // ---- Chromium's own

    /// The size of the window, as pages see it.
    pub(crate) async fn screen(&self, screen: Screen) {
        let Screen { width, height, scale, is_phone } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Whether the system asks for dark colours.
    pub(crate) async fn prefer_dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// The zone of the viewer's clock.
    pub(crate) async fn time_zone(&self, zone: &str) {
        self.devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone })).await;
    }

    /// A picture of the page, as long as it is but not longer than `most` pixels.
    pub(crate) async fn picture(&self, screen: Screen, most: u32) -> Vec<u8> {
        use base64::Engine;
        let height = self.value("document.documentElement.scrollHeight").await.as_u64().unwrap_or(0) as u32;
        let height = height.clamp(screen.height, most);
        let clip = json!({ "x": 0, "y": 0, "width": screen.width, "height": height, "scale": 1 });
        let asked = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let answer = self.devtools("Page.captureScreenshot", asked).await;
        let data = answer["data"].as_str().expect("a picture");
        base64::engine::general_purpose::STANDARD.decode(data).expect("base64")
    }

    /// What the console has said since this was asked last: errors, warnings and refusals of the content policy.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.log("browser").await;
        // Hints for who writes pages are of a lower level.
        let entries = entries.iter().filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        entries.filter_map(|entry| entry["message"].as_str().map(str::to_owned)).collect()
    }

    /// The addresses that pages have asked for since this was asked last.
    pub(crate) async fn requests(&self) -> Vec<String> {
        let events = self.log("performance").await;
        let asked = events.iter().filter_map(|entry| {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &event["message"];
            let is_request = message["method"] == "Network.requestWillBeSent";
            is_request.then(|| message["params"]["request"]["url"].as_str().map(str::to_owned))?
        });
        asked.collect()
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        match self.extension("se/log", json!({ "type": kind })).await {
            Value::Array(entries) => entries,
            other => panic!("not a log: {other}"),
        }
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.extension("goog/cdp/execute", json!({ "cmd": command, "params": params })).await
    }

    async fn extension(&self, path: &str, body: Value) -> Value {
        let answer =
            self.http.post(format!("{}/{path}", self.session)).json(&body).send().await.expect("the driver answers");
        let status = answer.status();
        let mut answer: Value = answer.json().await.expect("JSON");
        assert!(status.is_success(), "{path} {body}: {answer}");
        answer["value"].take()
    }
}
