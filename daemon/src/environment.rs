//! Environment variables.

use std::ffi::OsString;

/// The value of `name`; an empty one counts as none, as scripts clear variables so.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
