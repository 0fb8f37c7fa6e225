//! Feeds the oracle `tokens`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::oracles::tokens(data));
