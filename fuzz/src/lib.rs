//! The oracles of the fuzz targets in `fuzz_targets`. Nothing else is here, because stable tests include the same file.

pub mod oracles;
