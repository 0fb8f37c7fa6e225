//! Feeds the oracle `envelope`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::oracles::envelope(data));
