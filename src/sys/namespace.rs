//! This process's PID namespace, for messages about processes that it does not show.

use std::fs;

/// Returns the name of this process's PID namespace, as in `the PID namespace pid:[4026531836]`, under which lsns(8)
/// lists it.
pub fn own_pid_namespace() -> String {
    let name = fs::read_link("/proc/self/ns/pid").ok().and_then(|name| name.into_os_string().into_string().ok());
    name.map_or_else(|| "this PID namespace".to_owned(), |name| format!("the PID namespace {name}"))
}
