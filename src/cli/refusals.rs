//! The parser's errors in lockrun's words, where clap's would mislead or reveal too much.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::typos::advice_on;
use crate::text::escape::{escaped, is_plain_word, without_credentials, without_value};

/// Returns the message for an error in a command line of this `definition`; `None` if clap's own will do.
pub fn parse_error_message(error: &Error, definition: &Command) -> Option<String> {
    let text_of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let arg = text_of(ContextKind::InvalidArg)?;
    // As in `--key <KEY>`.
    let option = arg.split(' ').next().unwrap_or(arg);
    match error.kind() {
        // Clap would advise passing it to COMMAND.
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            let shown = if is_plain_word(arg) { arg } else { "***" };
            Some(format!("unknown option {shown}{}", advice_on(definition, arg)))
        }
        ErrorKind::UnknownArgument if definition.get_name() == "acquire" => Some(format!(
            "unexpected argument {}; to run a command under a lock, leave acquire out: lockrun --key KEY -- COMMAND",
            escaped(&without_value(arg, &format!("{arg:?}")))
        )),
        ErrorKind::ArgumentConflict if text_of(ContextKind::PriorArg) == Some(arg) => {
            Some(format!("{option} is given more than once"))
        }
        ErrorKind::TooManyValues => {
            let value = text_of(ContextKind::InvalidValue).unwrap_or_default();
            Some(format!("{option} takes no value: {}", without_value(value, &format!("{value:?}"))))
        }
        ErrorKind::InvalidValue if text_of(ContextKind::InvalidValue) == Some("") => {
            Some(format!("{option} needs a value: {}", arg.replace(['<', '>'], "")))
        }
        _ => None,
    }
}

/// Returns the `message` about this error without the words of the command line that may be the address of a store, see
/// [`is_plain_word`].
pub fn without_typed_values(error: &Error, message: &str) -> String {
    let mut message = message.to_owned();
    for (_, value) in error.context() {
        let values = match value {
            ContextValue::String(value) => std::slice::from_ref(value),
            ContextValue::Strings(values) => values,
            _ => continue,
        };
        // The definition's own words are options and their values' names.
        for value in values.iter().filter(|value| !value.starts_with('-') && !is_plain_word(value)) {
            // Clap quotes it. It may be so short that it is elsewhere in the text, too.
            message = message.replace(&format!("'{value}'"), "***");
        }
    }
    without_credentials(&message)
}
