//! fang ships its schema as files in the crate; find them.
fn main() {
    let dir = crate_dir::crate_dir("fang");
    println!("cargo:rustc-env=FANG_MIGRATION={dir}/postgres_migrations/migrations/2022-08-20-151615_create_fang_tasks");
}
