//! `windlass up`: plain lines where there is no terminal, a picture where there is one, counts that go on after a restart,
//! and an orderly end.

use crate::common::{Terminal, Windlass, bare, count};

#[test]
fn jobs_succeed_and_counts_go_on_after_a_restart() {
    let windlass = Windlass::new();
    let first = windlass.run(&["up", "--for", "4", "--listen", "127.0.0.1:0"]);
    assert_eq!(first.code, 0, "{first:?}");
    let mut lines = first.stdout.lines();
    let database = format!("sqlite:{}", windlass.database().display());
    assert!(lines.next().is_some_and(|line| line.contains(&database)), "{first:?}");
    let lines: Vec<&str> = lines.collect();
    let succeeded: Vec<u64> = lines.iter().map(|line| count(line, "succeeded")).collect();
    assert!(succeeded.is_sorted() && succeeded.first() < succeeded.last(), "{succeeded:?}");
    assert!(lines[0].starts_with("pending=") && lines[0].ends_with("/s"), "{lines:?}");
    assert!(first.stderr.contains("stopped after"), "{first:?}");

    let between = windlass.json(&["stats", "--all-tenants"])["succeeded"].as_u64().expect("a count");
    assert!(between >= *succeeded.last().expect("lines"), "what ended while stopping counts too");
    let mut again = windlass.up(&[]);
    let line = again.wait_for("more successes", |counts| counts("succeeded") > between);
    assert!(count(&line, "succeeded") > between);
    assert_eq!(again.stop("INT").code, 0);
}

#[test]
fn a_long_job_goes_on_from_its_checkpoint_after_a_restart() {
    let windlass = Windlass::new();
    let report = ["list", "--all-tenants", "--handler", "demo.report"];
    let mut up = windlass.up(&[]);
    up.wait_for("three seconds of work", |counts| counts("succeeded") > 30);
    assert_eq!(up.stop("INT").code, 0);
    let stopped = windlass.json(&report);
    let job = &stopped["jobs"][0];
    assert_eq!(job["status"], "pending", "handed back, not failed: {job}");
    assert_eq!(job["failed"], 0, "stopping costs no attempt: {job}");
    let id = job["id"].as_str().expect("an id").to_owned();
    let percent = |job: &serde_json::Value| job["progress"]["percent"].as_f64().unwrap_or(0.0);

    let mut again = windlass.up(&["--no-color"]);
    again.wait_for("it runs again", |counts| counts("running") > 0);
    let shown = windlass.json(&["show", &id, "--all-tenants"]);
    assert!(percent(&shown["job"]) >= percent(job), "it does not start over: {shown}");
    assert_eq!(again.stop("TERM").code, 0);
}

#[test]
fn while_it_runs_other_commands_look_and_write_through_it() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&[]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    assert!(!windlass.json(&["list", "--all-tenants"])["jobs"].as_array().expect("jobs").is_empty());
    assert_eq!(windlass.json(&["nodes"])["nodes"][0]["info"]["capacity"], 16);
    assert_eq!(windlass.run(&["doctor"]).code, 0);
    // One process at a time writes to the file, so these go through the one that has it.
    let id = windlass.submit(&["demo.reminder", r#"{"note":"tea"}"#, "--delay", "1h"]);
    assert_eq!(windlass.json(&["cancel", &id])["results"][0]["result"], "canceled");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "canceled");
    let waited = windlass.json(&["submit", "demo.reminder", r#"{"note":"tea"}"#, "--wait"]);
    assert_eq!((&waited["status"], &waited["output"]), (&"succeeded".into(), &"reminded of tea".into()));
    windlass.fails(&["up", "--for", "1", "--listen", "127.0.0.1:0"], 4, "refused");
    assert_eq!(up.stop("INT").code, 0);
    // What it left behind is not believed once it is gone.
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "canceled");
    windlass.submit(&["demo.reminder", r#"{"note":"more tea"}"#]);
}

/// HND-4: a file turns handlers on; without one they are not there, and a bad file is refused before anything starts.
#[cfg(unix)]
#[test]
fn handlers_that_come_with_it_are_turned_on_by_a_file() {
    let windlass = Windlass::new();
    let file = windlass.path().join("handlers.toml");
    std::fs::write(&file, "[command.programs]\necho = 'echo'\n").expect("writes");
    let file = file.display().to_string();
    let up = ["up", "--for", "1", "--listen", "127.0.0.1:0", "--no-demo", "--handlers", &file];
    windlass.fails(&up, 2, "invalid_input");
    std::fs::write(&file, "[command.programs]\necho = '/bin/echo'\n").expect("writes");
    let mut up = windlass.up(&["--no-demo", "--handlers", &file]);
    up.line();
    let job = ["submit", "command.run", r#"{"program":"echo","args":["$HOME"]}"#, "--wait"];
    assert_eq!(windlass.json(&job)["output"]["stdout"], "$HOME\n");
    windlass.fails(&["submit", "command.run", r#"{"program":"sh"}"#], 2, "invalid_input");
    windlass.fails(&["submit", "http.call", r#"{"url":"https://example.org/"}"#], 3, "handler_not_found");
    assert_eq!(up.stop("INT").code, 0);
}

#[test]
fn it_says_where_the_dashboard_is_and_the_link_works_once() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&up.line()).expect("an object");
    let link = said["login"].as_str().expect("a link");
    let path = link.strip_prefix(said["address"].as_str().expect("an address")).expect("a path of the same server");
    let host = said["address"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a host");
    let get = |path: &str| crate::common::http_get(host, path);
    let first = get(path);
    assert!(first.starts_with("HTTP/1.1 303") && first.to_lowercase().contains("set-cookie"), "{first}");
    assert!(!get(path).starts_with("HTTP/1.1 303"), "it works once");
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(up.stop("INT").code, 0);
}

#[test]
fn a_reader_that_goes_away_ends_it_in_order() {
    let windlass = Windlass::new();
    let mut command = windlass.command(&["up", "--for", "60", "--listen", "127.0.0.1:0"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    // Nothing is left behind as running.
    assert_eq!(windlass.json(&["stats", "--all-tenants"])["running"], 0);
    assert_eq!(windlass.json(&["nodes"])["nodes"], serde_json::json!([]));
}

#[test]
fn without_the_demo_it_only_keeps_the_store_in_order() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let ran = windlass.run(&["up", "--no-demo", "--for", "1", "--json", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "pending");
}

#[test]
fn the_data_directory_is_made_where_it_is_wanted() {
    let windlass = Windlass::new();
    let directory = windlass.path().join("deep/down");
    let ran =
        windlass.run(&["up", "--for", "0", "--listen", "127.0.0.1:0", "--data", &directory.display().to_string()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(directory.join("windlass.db").exists());
}

/// API-4: it runs demo jobs, so it must not follow a variable into a database of somebody's jobs.
#[test]
fn it_works_on_its_own_file_whatever_the_environment_says() {
    let windlass = Windlass::new();
    let home = windlass.path().join("home");
    std::fs::create_dir(&home).expect("a directory");
    let mut command = windlass.command(&["up", "--data", "windlass-data", "--for", "1", "--listen", "127.0.0.1:0"]);
    command.current_dir(&home);
    let mut plain = crate::common::bare(&["up", "--for", "1", "--listen", "127.0.0.1:0"]);
    plain.current_dir(&home).env("WINDLASS_DB", format!("sqlite:{}", windlass.database().display()));
    let ran = crate::common::finish(plain);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("sqlite:./windlass-data/windlass.db"), "{ran:?}");
    assert!(home.join("windlass-data/windlass.db").exists());
    let stats = windlass.json(&["stats", "--all-tenants"]);
    assert!(stats.as_object().expect("counts").values().all(|count| count == 0), "not one job there: {stats}");
    assert_eq!(crate::common::finish(command).code, 0);
}

/// What is left of it after an orderly end: one file to copy, and what keeps sessions.
#[test]
fn it_leaves_nothing_behind_but_its_file() {
    let windlass = Windlass::new();
    let names = || {
        let files = std::fs::read_dir(windlass.path()).expect("reads");
        let mut names: Vec<_> =
            files.map(|file| file.expect("reads").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    let mut up = windlass.up(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&up.line()).expect("an object");
    let host = said["address"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a host");
    let link = said["login"].as_str().and_then(|link| link.strip_prefix(said["address"].as_str()?)).expect("a path");
    assert!(crate::common::http_get(host, link).starts_with("HTTP/1.1 303"), "a session needs its secret");
    up.line();
    assert!(names().contains(&"windlass.db.server".to_owned()), "{:?}", names());
    assert_eq!(windlass.json(&["api-key", "list", "--all-tenants"])["keys"], serde_json::json!([]));
    assert_eq!(up.stop("TERM").code, 0);
    assert_eq!(names(), ["windlass.db", "windlass.db.secrets"]);
    let served = windlass.serve(&[]);
    assert!(windlass.json(&["stats", "--all-tenants"])["succeeded"].is_number(), "through the server");
    assert_eq!(served.stop(), 0);
    assert_eq!(names(), ["windlass.db", "windlass.db.secrets"]);
}

/// API-3: whoever lost the link, or used it up, gets another.
#[test]
fn a_new_login_link_is_printed_on_request() {
    let windlass = Windlass::new();
    let nobody = windlass.fails(&["login"], 3, "not_found");
    assert!(nobody["message"].as_str().is_some_and(|said| said.contains("windlass up")), "{nobody}");
    let mut up = windlass.up(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&up.line()).expect("an object");
    let host = said["address"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a host");
    let path = |link: &str| format!("/{}", link.splitn(4, '/').nth(3).expect("a path"));
    let first = path(said["login"].as_str().expect("a link"));
    assert!(crate::common::http_get(host, &first).starts_with("HTTP/1.1 303"));
    let used = crate::common::http_get(host, &first);
    assert!(used.starts_with("HTTP/1.1 404") && used.contains("windlass login"), "{used}");
    let printed = windlass.run(&["login"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let link = printed.stdout.trim();
    assert!(link.starts_with(&format!("http://{host}/login/")), "{printed:?}");
    assert!(crate::common::http_get(host, &path(link)).starts_with("HTTP/1.1 303"));
    assert!(crate::common::http_get(host, &path(link)).starts_with("HTTP/1.1 404"), "it works once, too");
    assert_eq!(up.stop("INT").code, 0);

    // A server that lets nobody in by a link says what does.
    let served = windlass.serve(&[]);
    let refused = windlass.fails(&["login"], 4, "conflict");
    assert!(refused["message"].as_str().is_some_and(|said| said.contains("API key")), "{refused}");
    // The link has every right, so the caller must have them too.
    let key = windlass.key(&["--rights", "admin", "--all-tenants"]);
    Windlass::through(&served, &key).fails(&["login"], 5, "forbidden");
}

/// API-4: on a terminal of 80 columns and 24 rows the link can be copied whole, and the hints are there.
#[test]
fn a_small_terminal_shows_the_whole_link_and_the_hints() {
    let windlass = Windlass::new();
    let up = windlass.command(&["up", "--for", "4", "--listen", "127.0.0.1:0"]);
    let output = Terminal::run(&up).output().expect("there is script(1)");
    assert!(output.status.success(), "{output:?}");
    let written = String::from_utf8(output.stdout).expect("text");
    let mut pictures = Vec::new();
    Terminal::new().show(&written, |picture| pictures.push(picture));
    assert!(pictures.len() > 4, "it is drawn again and again: {written}");
    for picture in &pictures {
        let shown = picture.join("\n");
        let link = picture.iter().find_map(|row| row.split("http://").nth(1)).unwrap_or_else(|| panic!("{shown}"));
        let (address, token) = link.split_once("/login/").unwrap_or_else(|| panic!("{shown}"));
        assert!(address.starts_with("127.0.0.1:") && token.len() == 43, "{shown}");
        assert!(picture[0].starts_with("windlass "), "nothing has scrolled away: {shown}");
        let hints =
            ["From another terminal:", "  windlass --all-tenants list", "  windlass login", "failures list", "doctor."];
        for hint in hints.into_iter().chain(["Ctrl-C stops"]) {
            assert!(shown.contains(hint), "no `{hint}` in\n{shown}");
        }
    }
    let last = pictures.last().expect("a picture").join("\n");
    assert!(last.contains("Lately") && last.contains("demo.") && last.contains("succeeded"), "{last}");
}

/// API-4: what `up` prints to copy reaches what `up` works on, from every directory and whatever the variables say, although
/// `up` itself follows none of them.
#[test]
fn the_printed_commands_reach_the_demo_and_no_other_database() {
    use std::io::Read;
    let (demo, other) = (Windlass::missing(), Windlass::new());
    let elsewhere = format!("sqlite:{}", other.database().display());
    let home = demo.path().join("home");
    std::fs::create_dir(&home).expect("a directory");
    let mut command = bare(&["up", "--for", "60", "--listen", "127.0.0.1:0"]);
    command.current_dir(&home).env("WINDLASS_DB", &elsewhere).env("WINDLASS_URL", "http://127.0.0.1:1");
    let mut up = Terminal::run(&command).spawn().expect("there is script(1)");
    let (mut screen, mut written, mut bytes) = (up.stdout.take().expect("piped"), Vec::new(), [0; 4_096]);
    // A picture is whole when what is below it is cleared.
    let is_whole = |written: &[u8]| {
        String::from_utf8_lossy(written).rsplit_once("\x1b[J").is_some_and(|(drawn, _)| drawn.contains("  demo."))
    };
    while !is_whole(&written) {
        let read = screen.read(&mut bytes).expect("it draws");
        assert!(read > 0, "it ended early: {}", String::from_utf8_lossy(&written));
        written.extend_from_slice(&bytes[..read]);
    }
    let text = String::from_utf8_lossy(&written);
    let whole = &text[..text.rfind("\x1b[J").expect("a picture") + "\x1b[J".len()];
    let mut pictures = Vec::new();
    Terminal::new().show(whole, |picture| pictures.push(picture));
    let commands = copied(pictures.last().expect("a picture"));
    let [list, login] = &commands[..] else { panic!("{commands:?} in {pictures:?}") };

    // As pasted into a shell in another directory that has the variable.
    let run = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        let program = env!("CARGO_BIN_EXE_windlass");
        shell.args(["-c", &format!("windlass() {{ '{program}' \"$@\"; }}; {line}")]).current_dir("/");
        for (name, value) in bare(&[]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        crate::common::finish({
            shell.env("WINDLASS_DB", &elsewhere);
            shell
        })
    };
    let listed = run(&format!("{list} --json"));
    assert!(listed.code == 0 && listed.stdout.contains("demo."), "{list}: {listed:?}");
    let link = run(login);
    assert!(link.code == 0 && link.stdout.contains("/login/"), "{login}: {link:?}");
    let stats = other.json(&["stats", "--all-tenants"]);
    assert!(stats.as_object().expect("counts").values().all(|count| count == 0), "not one job there: {stats}");
    up.kill().expect("it runs");
    up.wait().expect("it ends");
}

/// The commands of a picture, each as a terminal copies it: a row that is full goes on in the next.
fn copied(picture: &[String]) -> Vec<String> {
    let mut commands = Vec::new();
    let mut rows = picture.iter();
    while let Some(row) = rows.next() {
        if !row.starts_with("  windlass ") {
            continue;
        }
        let (mut command, mut last) = (row.clone(), row);
        while last.chars().count() == Terminal::COLUMNS {
            last = rows.next().expect("it goes on");
            command.push_str(last);
        }
        commands.push(command.trim().to_owned());
    }
    commands
}
