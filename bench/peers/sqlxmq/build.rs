//! sqlxmq ships its schema as files in the crate; find them.
fn main() {
    println!("cargo:rustc-env=SQLXMQ_MIGRATIONS={}/migrations", crate_dir::crate_dir("sqlxmq"));
}
