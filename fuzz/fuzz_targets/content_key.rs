//! Feeds the oracle `content_key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::oracles::content_key(data));
