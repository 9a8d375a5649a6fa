//! The lines of a crontab.

/// What cron hands to the shell: the line without its five fields of time. A percent sign would end the command
/// unless there is a backslash before it.
pub(crate) fn command_of(line: &str) -> String {
    let mut rest = line;
    for _ in 0..5 {
        rest = rest.split_once(char::is_whitespace).expect("five fields of time").1.trim_start();
    }
    let escaped = rest.replace("\\%", "\0");
    assert!(!escaped.contains('%'), "the rest of this line would be standard input: {line}");
    escaped.replace('\0', "%")
}
