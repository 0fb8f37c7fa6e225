//! The dashboard: pages rendered on the server, one small script, no request to any other host.
