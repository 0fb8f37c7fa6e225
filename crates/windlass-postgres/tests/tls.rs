//! Connections to a server that encrypts, with an authority of the test's own: what each `sslmode` lets pass and what it
//! refuses. One server for all cases, because each costs a second to start.

#![cfg(feature = "tls")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_postgres::{Client, NoTls};
use windlass_core::store::rooms::*;
use windlass_core::store::{Error, NewNode};
use windlass_postgres::PgStore;
use windlass_testkit::servers::{PostgresOptions, PostgresServer, StopMode};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Authority::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Writes a certificate and its key into `dir`, readable for whom `dir` belongs to and for nobody else.
fn certify(authority: &Authority, names: &[&str], common_name: &str, dir: &Path, file: &str) {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).expect("names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    write(dir, &format!("{file}.crt"), &certificate.pem());
    write(dir, &format!("{file}.key"), &key.serialize_pem());
}

fn write(dir: &Path, file: &str, text: &str) {
    let (path, owner) = (dir.join(file), std::fs::metadata(dir).expect("the directory"));
    std::fs::write(&path, text).expect("write");
    chown(&path, Some(owner.uid()), Some(owner.gid())).expect("give away");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("hide");
}

/// A server whose certificate is for `localhost`, and which lets `certified` in by a certificate alone.
fn server(authority: &Authority) -> PostgresServer {
    let mut server = PostgresServer::start(PostgresOptions::fleeting()).expect("a server");
    server.create_database("jobs").expect("create");
    server.stop(StopMode::Fast).expect("stop");
    let data = server.data_dir();
    certify(authority, &["localhost"], "server", &data, "server");
    write(&data, "root.crt", &authority.pem());
    let rules = std::fs::read_to_string(data.join("pg_hba.conf")).expect("who may log in");
    write(&data, "pg_hba.conf", &format!("hostssl all certified all cert\n{rules}"));
    server.set("ssl", "on");
    server.set("ssl_ca_file", "root.crt");
    server.start_again().expect("start");
    server
}

async fn client(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("jobs"), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Whether all connections of a store are encrypted, its listening one too; fails if some are and some are not.
async fn is_encrypted(admin: &Client) -> bool {
    let sql = "select count(*) filter (where s.ssl), count(*), count(*) filter (where a.query like 'listen%')
               from pg_stat_activity a join pg_stat_ssl s using (pid) where a.application_name = 'windlass'";
    let started = Instant::now();
    loop {
        let row = admin.query_one(sql, &[]).await.expect("ask");
        let (encrypted, all, listening): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if listening > 0 {
            assert!(encrypted == 0 || encrypted == all, "{encrypted} of {all}");
            return encrypted > 0;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends the sessions of a store that is gone, so that the next one is looked at alone.
async fn clear(admin: &Client) {
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'windlass'";
    let started = Instant::now();
    while admin.query_one(sql, &[]).await.expect("end").get::<_, i64>(0) > 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "sessions do not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_believed_as_far_as_the_url_says() {
    let (ours, other) = (authority("ours"), authority("other"));
    let server = server(&ours);
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "ours.pem", &ours.pem());
    write(dir.path(), "other.pem", &other.pem());
    certify(&ours, &[], "certified", dir.path(), "client");
    let file = |name: &str| dir.path().join(name).display().to_string().replace('/', "%2F");
    let (ours, other) = (file("ours.pem"), file("other.pem"));
    let url = |user: &str, host: &str, query: &str| format!("postgres://{user}@{host}:{}/jobs?{query}", server.port());
    let admin = client(&server).await;
    admin.batch_execute("create role certified superuser login").await.expect("a login");

    let (name, address) = ("localhost", "127.0.0.1");
    let passes = [
        (address, "sslmode=disable".to_owned(), false),
        (address, String::new(), true),
        (address, "sslmode=require".to_owned(), true),
        (address, format!("sslmode=verify-ca&sslrootcert={ours}"), true),
        (name, format!("sslmode=verify-full&sslrootcert={ours}"), true),
    ];
    for (host, query, encrypted) in passes {
        let store = PgStore::connect(&url("postgres", host, &query)).await.expect(&query);
        store.register(NewNode::default()).await.expect("works");
        assert_eq!(is_encrypted(&admin).await, encrypted, "{query}");
        drop(store);
        clear(&admin).await;
    }
    let refused = [
        (address, format!("sslmode=verify-full&sslrootcert={ours}"), "not valid for name"),
        (name, format!("sslmode=verify-full&sslrootcert={other}"), "UnknownIssuer"),
        (address, format!("sslmode=require&sslrootcert={other}"), "UnknownIssuer"),
        (name, "sslmode=verify-full&sslrootcert=system".to_owned(), "UnknownIssuer"),
    ];
    for (host, query, why) in refused {
        let error = PgStore::connect(&url("postgres", host, &query)).await.expect_err(&query);
        assert!(matches!(&error, Error::Refused(text) if text.contains(why)), "{query}: {error}");
    }

    let certificate = format!("sslmode=require&sslcert={}&sslkey={}", file("client.crt"), file("client.key"));
    PgStore::connect(&url("certified", address, &certificate)).await.expect("its certificate lets it in");
    let without = PgStore::connect(&url("certified", address, "sslmode=require")).await;
    assert!(matches!(without, Err(Error::Refused(_))), "{:?}", without.err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_encrypt_is_refused_by_who_needs_it() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a server");
    server.create_database("jobs").expect("create");
    let error = PgStore::connect(&format!("{}?sslmode=require", server.url("jobs"))).await.expect_err("plain");
    assert!(matches!(&error, Error::Refused(text) if text.contains("does not support TLS")), "{error}");
    let store = PgStore::connect(&format!("{}?sslmode=prefer", server.url("jobs"))).await.expect("plain will do");
    store.register(NewNode::default()).await.expect("works");
    assert!(!is_encrypted(&client(&server).await).await);
}
