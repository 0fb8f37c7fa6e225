//! Everything that is read from outside, against the oracles of `fuzz/`: on each seed of the corpus, on pieces and
//! mixtures of them, and on random text, for a second each with every change and for ten in the full tier. The same
//! oracles run under libFuzzer, for as long as one likes, with `cargo xtask fuzz`.

#[path = "../../../fuzz/src/oracles.rs"]
#[allow(unreachable_pub, reason = "a library there, a module here")]
mod oracles;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use windlass_testkit::servers::is_full_tier;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(corpus(target)).expect("a corpus").map(|file| file.expect("a seed").path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).expect("a seed")).collect()
}

#[test]
fn every_seed_of_the_corpus_passes() {
    for (target, oracle) in oracles::ORACLES {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{target} has no seeds");
        seeds.iter().for_each(|seed| oracle(seed));
    }
}

/// A seed with a part of it replaced by a part of another, or by random text.
fn mixture(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let seed = prop::sample::select(seeds);
    let insert = prop_oneof![
        seed.clone(),
        "[\\PC\\x00-\\x1f]{0,8}".prop_map(String::into_bytes),
        "[\\[\\]{}\":,0-9eE.+-]{0,12}".prop_map(String::into_bytes),
    ];
    (seed, insert, any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(|(seed, insert, from, to)| {
        let (from, to) = (from.index(seed.len() + 1), to.index(seed.len() + 1));
        [&seed[..from.min(to)], &insert, &seed[from.max(to)..]].concat()
    })
}

/// Inputs between two looks at the clock, and the least for each oracle, however slow the machine is.
const ROUND: u32 = 100;
const LEAST: u32 = 400;

#[test]
fn mixtures_of_seeds_and_random_text_pass() {
    let time = Duration::from_secs(if is_full_tier() { 10 } else { 1 });
    for (target, oracle) in oracles::ORACLES {
        let mut runner = TestRunner::new(Config { failure_persistence: None, cases: ROUND, ..Config::default() });
        let any_text = prop_oneof![mixture(seeds(target)), "\\PC{0,40}".prop_map(String::into_bytes)];
        let (began, mut inputs) = (Instant::now(), 0);
        while inputs < LEAST || began.elapsed() < time {
            let passed = runner.run(&any_text, |data| {
                oracle(&data);
                Ok(())
            });
            passed.unwrap_or_else(|error| panic!("{target}: {error}"));
            inputs += ROUND;
        }
    }
}

#[test]
fn every_oracle_has_a_fuzz_target() {
    for (target, _) in oracles::ORACLES {
        let file = corpus(target).join("../../fuzz_targets").join(format!("{target}.rs"));
        assert!(file.exists(), "{} is missing", file.display());
    }
}
