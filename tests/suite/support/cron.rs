//! The lines of a crontab.

/// Returns what cron passes to the shell: the line without its five time fields. Without a backslash before it, a
/// percent sign would end the command.
pub(crate) fn command_of(line: &str) -> String {
    let mut rest = line;
    for _ in 0..5 {
        rest = rest.split_once(char::is_whitespace).expect("five fields of time").1.trim_start();
    }
    let escaped = rest.replace("\\%", "\0");
    assert!(!escaped.contains('%'), "the rest of this line would be standard input: {line}");
    escaped.replace('\0', "%")
}
