//! Where cargo keeps the source of a dependency. Called by build scripts of peers that bring their schema as SQL files
//! in their crate and offer no call that installs it.

use std::process::Command;

/// The directory of the crate `name`, which the package being built depends on.
pub fn crate_dir(name: &str) -> String {
    let output = Command::new(std::env::var("CARGO").unwrap())
        .args(["metadata", "--format-version", "1"])
        .output()
        .expect("cargo metadata");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == name).expect(name);
    package["manifest_path"].as_str().and_then(|path| path.strip_suffix("/Cargo.toml")).expect("a path").to_owned()
}
