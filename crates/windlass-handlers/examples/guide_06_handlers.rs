//! The program of chapter 6 of the guide (docs/guide/06-handlers.md): a download, an HTTP call, an e-mail and a command,
//! with servers of its own on loopback.
//!
//! `cargo run -p windlass-handlers --example guide_06_handlers`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use windlass::JobService;
use windlass_handlers::command::{self, Command, CommandInput};
use windlass_handlers::download::{self, Download, DownloadInput};
use windlass_handlers::egress::Egress;
use windlass_handlers::email::{self, Email, EmailInput, Smtp};
use windlass_handlers::http::{self, HttpCall, HttpInput};
use windlass_handlers::{Handlers, Secret};

const SOON: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("payments.key"), "sk-test-1")?;
    let (web, mail_port) = (serve_web().await?, serve_mail().await?);

    // Only for servers on this machine. By default jobs reach public addresses over https and nothing else.
    let loopback = Egress::anywhere();
    let key = Secret::file(at("payments.key")).for_host("127.0.0.1");
    let smtp = Smtp::plain("127.0.0.1").port(mail_port);
    let jobs = JobService::builder(windlass::open(&format!("sqlite:{}", at("jobs.db").display())).await?)
        .download(Download::into(at("downloads"))?.egress(loopback.clone()))
        .http(HttpCall::new().egress(loopback).secret("payments", key))
        .email(Email::smtp(smtp, "Shop <shop@example.org>")?)
        .command(Command::allow("wc", "/usr/bin/wc").directory(at("downloads")))
        .start()
        .await?;

    let file = DownloadInput::new(format!("{web}/prices.csv"), "prices.csv").length(16);
    let file = download::HANDLER.submit(&jobs, file).await?.wait(SOON).await?;
    println!("download: {} bytes in {}", file.bytes, file.file);

    let refund = serde_json::json!({ "order": 7 });
    let call = HttpInput::post(format!("{web}/refunds"), refund).secret_header("authorization", "Bearer ", "payments");
    let reply = http::HANDLER.submit(&jobs, call).await?.wait(SOON).await?;
    println!("http: {} {}", reply.status, reply.body);

    let letter = EmailInput::new("Ada <ada@example.org>", "Your refund", "It is on its way.");
    let sent = email::HANDLER.submit(&jobs, letter).await?.wait(SOON).await?;
    println!("email: {} recipient, the server said: {}", sent.recipients, sent.reply);

    let count = CommandInput::new("wc", ["-l", "prices.csv"]);
    let counted = command::HANDLER.submit(&jobs, count).await?.wait(SOON).await?;
    println!("command: {}", counted.stdout.trim());

    // What is not allowed is refused when it is submitted, and nothing is stored.
    let outside = DownloadInput::new(format!("{web}/prices.csv"), "../prices.csv");
    let error = download::HANDLER.submit(&jobs, outside).await.expect_err("it leads out");
    println!("refused: {error}");
    jobs.shutdown().await;
    Ok(())
}

/// A file, and a service that wants a key.
async fn serve_web() -> std::io::Result<String> {
    let refund = |headers: HeaderMap| async move {
        let is_known = headers.get("authorization").is_some_and(|key| key == "Bearer sk-test-1");
        if is_known { Ok("refunded") } else { Err(axum::http::StatusCode::UNAUTHORIZED) }
    };
    let routes =
        Router::new().route("/prices.csv", get(|| async { "lamp,49\nchair,7\n" })).route("/refunds", post(refund));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(url)
}

/// A mail server that takes one e-mail per connection and keeps none.
async fn serve_mail() -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that hangs up early ends its connection and no other.
            let _ = take_mail(stream).await;
        }
    });
    Ok(port)
}

async fn take_mail(stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 example ESMTP\r\n").await?;
    let mut in_text = false;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let reply = match line.trim_end() {
            "." => "250 queued as 1",
            _ if in_text => "",
            "DATA" => "354 go on",
            "QUIT" => "221 bye",
            _ => "250 fine",
        };
        in_text = (in_text || reply.starts_with("354")) && !reply.starts_with("250");
        if !reply.is_empty() {
            stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        }
        line.clear();
    }
    Ok(())
}
