//! The configuration files: the user's, and the system's, which it overrides.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::layer::Layer;
use super::settings::UsageError;
use crate::cli::name;
use crate::sys::{input, trust};
use crate::text::escape::{escaped, has_password};
use crate::text::nearest::alike;
use crate::text::shell::word;

/// The system's file.
const SYSTEM: &str = "/etc/lockrun.toml";

/// The kinds of values that options take in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Duration,
    Number,
    Switch,
    /// A duration, or true or false.
    DurationOrSwitch,
}

/// Every option that a file can set: all options of a run except the key.
const OPTIONS: [(&str, Kind); 26] = [
    (name::STORE, Kind::Text),
    (name::STORE_FILE, Kind::Text),
    (name::SLOTS, Kind::Number),
    (name::SHARED, Kind::Switch),
    (name::EXCLUSIVE, Kind::Switch),
    (name::FAIL, Kind::Switch),
    (name::SKIP, Kind::DurationOrSwitch),
    (name::WAIT, Kind::DurationOrSwitch),
    (name::MAX_WAITING, Kind::Number),
    (name::ONCE_PER, Kind::Duration),
    (name::CONFLICT, Kind::Number),
    (name::TTL, Kind::Duration),
    (name::RENEW_EVERY, Kind::Duration),
    (name::STORE_TIMEOUT, Kind::Duration),
    (name::STORE_RETRY, Kind::Duration),
    (name::ON_LOST, Kind::Text),
    (name::MIN_HOLD, Kind::Duration),
    (name::KEEP, Kind::Switch),
    (name::COMMAND_STRING, Kind::Text),
    (name::MAX_RUNTIME, Kind::Duration),
    (name::KILL_AFTER, Kind::Duration),
    (name::DESCENDANTS, Kind::Text),
    (name::LABEL, Kind::Text),
    (name::EVENTS, Kind::Text),
    (name::VERBOSE, Kind::Switch),
    (name::QUIET, Kind::Switch),
];

/// Returns the names of these options. The same ones have a variable.
pub(super) fn option_names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

/// Returns the documentation's word for the kind of this option's value in a file; `None` if no file can set the
/// option.
#[cfg(test)]
pub(crate) fn documented_kind(option: &str) -> Option<&'static str> {
    let (_, kind) = OPTIONS.iter().find(|(name, _)| *name == option)?;
    Some(match kind {
        Kind::Text => "text",
        Kind::Duration => "duration",
        Kind::Number => "number",
        Kind::Switch => "switch",
        Kind::DurationOrSwitch => "switch or duration",
    })
}

impl Kind {
    const fn wanted(self) -> &'static str {
        match self {
            Kind::Text => "text in quotes",
            Kind::Duration => "a duration, such as 5, 0.5 or \"5m\"",
            Kind::Number => "a whole number",
            Kind::Switch => "true or false",
            Kind::DurationOrSwitch => "a duration, such as 5, 0.5 or \"5m\", or true or false",
        }
    }

    /// Returns the value as it would be typed, if it is of this kind.
    fn text(self, value: &DeValue<'_>) -> Option<String> {
        match (self, value) {
            (Kind::Text | Kind::Duration | Kind::DurationOrSwitch, DeValue::String(text)) => Some(text.as_ref().into()),
            (Kind::Duration | Kind::DurationOrSwitch | Kind::Number, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                Some(number.as_str().into())
            }
            (Kind::Duration | Kind::DurationOrSwitch, DeValue::Float(number)) => Some(number.as_str().into()),
            (Kind::Switch | Kind::DurationOrSwitch, DeValue::Boolean(on)) => Some(on.to_string()),
            _ => None,
        }
    }
}

/// A configuration file that exists.
#[derive(Debug)]
pub struct File {
    path: String,
    settings: Vec<Setting>,
    readable_by_others: bool,
}

/// A line of a configuration file.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    name: &'static str,
    value: String,
    line: usize,
}

/// Reads the files that exist, the user's first. `environment` locates the user's. Fails with [`UsageError`] if one
/// cannot be read or parsed.
///
/// A HOME may be left over from another user, as after a service has changed its user: then there is no user's file.
/// `XDG_CONFIG_HOME` is set on purpose, so what it names must be readable if it is there: without its configuration,
/// the lock would be in another store.
pub fn read(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<File>> {
    let mut files = Vec::new();
    match user_file(environment)? {
        Some(UserFile::Xdg(path)) => files.extend(open(&path, Path::new("/"), Absent::NotFound)?),
        Some(UserFile::Home(home, path)) => files.extend(
            open(&path, &home, Absent::NotFoundOrNoDirectory)
                .or_else(|error| if trust::is_in_foreign_home(&home, &path) { Ok(None) } else { Err(error) })?,
        ),
        None => {}
    }
    files.extend(open(Path::new(SYSTEM), Path::new("/"), Absent::NotFoundOrNoDirectory)?);
    Ok(files)
}

/// Where the environment says that the user's file is.
#[derive(Debug, PartialEq, Eq)]
enum UserFile {
    /// Below `XDG_CONFIG_HOME`.
    Xdg(PathBuf),
    /// Below HOME, which comes first.
    Home(PathBuf, PathBuf),
}

/// Returns where the user's file is. A relative HOME counts as unset; a relative `XDG_CONFIG_HOME` is an error.
fn user_file(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<UserFile>, UsageError> {
    let directory = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match directory(XDG_CONFIG_HOME) {
        Some(place) if place.is_absolute() => Ok(Some(UserFile::Xdg(place.join("lockrun/config.toml")))),
        Some(_) => Err(format!("{XDG_CONFIG_HOME} is not an absolute path; correct it, or unset it").into()),
        None => Ok(directory("HOME").filter(|home| home.is_absolute()).map(|home| {
            let path = home.join(".config/lockrun/config.toml");
            UserFile::Home(home, path)
        })),
    }
}

/// The variable that names the directory of the user's configuration files.
const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";

/// Which errors mean that there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absent {
    NotFound,
    /// Also if something on the path is not a directory, as in a HOME that is /dev/null.
    NotFoundOrNoDirectory,
}

/// Reads a file, if it exists. A symbolic link on its path, below the directory `base`, that leads nowhere is an error:
/// the file is meant to be there.
fn open(path: &Path, base: &Path, absent: Absent) -> Result<Option<File>> {
    let read = input::read_trusted_file(path).and_then(|(bytes, metadata)| Ok((input::text(bytes)?, metadata.mode())));
    match read {
        Ok((text, mode)) => Ok(Some(File::parse(path.as_os_str(), &text, mode)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => match dangling_link(path, base) {
            None => Ok(None),
            Some(link) => {
                let why = format!("the symbolic link {} leads nowhere", escaped(&link.to_string_lossy()));
                Err(unreadable(path, &io::Error::other(why)))
            }
        },
        Err(error) if error.kind() == ErrorKind::NotADirectory && absent == Absent::NotFoundOrNoDirectory => Ok(None),
        Err(error)
            if absent == Absent::NotFound && matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENOTDIR)) =>
        {
            let why = format!("{error}; {XDG_CONFIG_HOME} names it: if that is left over from another user, unset it");
            Err(unreadable(path, &io::Error::other(why)))
        }
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Returns the symbolic link below `base`, on a path to nothing, that leads nowhere, if there is one.
fn dangling_link<'a>(path: &'a Path, base: &Path) -> Option<&'a Path> {
    let below = path.ancestors().take_while(|above| *above != base);
    let deepest = { below }.find(|above| above.symlink_metadata().is_ok())?;
    deepest.metadata().is_err().then_some(deepest)
}

/// Returns the error for a file that cannot be read: a usage error, unless the system has run out of a resource.
fn unreadable(path: &Path, cause: &io::Error) -> anyhow::Error {
    let error = UsageError::from(format!("cannot read {}: {cause}", escaped(&path.to_string_lossy())));
    match cause.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => anyhow::Error::msg(error.to_string()),
        _ => error.into(),
    }
}

impl File {
    /// Parses the text of the file at `path`, which has the permissions `mode`. Fails on anything that is not a known
    /// option.
    pub(super) fn parse(path: &OsStr, text: &str, mode: u32) -> Result<Self, UsageError> {
        let path = escaped(&path.to_string_lossy());
        let line = |at: Range<usize>| text.as_bytes()[..at.start.min(text.len())].split(|byte| *byte == b'\n').count();
        let table = DeTable::parse(text).map_err(|error| {
            format!("{path}:{}: {}", error.span().map_or(1, line), error.message().replace('\n', ", "))
        })?;
        let mut lines: Vec<_> = table.get_ref().iter().map(|(name, value)| (line(name.span()), name, value)).collect();
        lines.sort_by_key(|(line, ..)| *line);
        let settings = lines.into_iter().map(|(line, name, value)| {
            Setting::read(name.as_ref(), value, line).map_err(|why| format!("{path}:{line}: {why}"))
        });
        let settings = settings.collect::<Result<_, _>>()?;
        Ok(File { path, settings, readable_by_others: mode & 0o044 != 0 })
    }

    /// Returns a warning if the file contains a password that others can read.
    pub fn warning(&self) -> Option<String> {
        let store = self.setting(name::STORE)?;
        (self.readable_by_others && has_password(&store.value)).then(|| {
            format!(
                "warning: {}:{} contains a password that others can read: chmod go= {}",
                self.path,
                store.line,
                word(&self.path)
            )
        })
    }

    fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

impl Setting {
    /// Parses one setting. The error says what is wrong.
    fn read(name: &str, value: &Spanned<DeValue<'_>>, line: usize) -> Result<Self, String> {
        let Some((name, kind)) = OPTIONS.into_iter().find(|(known, _)| *known == name) else {
            // A name with other characters may be a line of another program's configuration, with a password.
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
            let said = if is_name { format!("{name:?}") } else { "***".to_owned() };
            let close = name.to_ascii_lowercase().replace('_', "-");
            return Err(match alike(&close, OPTIONS.iter().map(|(known, _)| *known)) {
                Some(known) => format!("{said} is not an option; {known} is"),
                None => format!("{said} is not an option that can be set here"),
            });
        };
        match kind.text(value.get_ref()) {
            Some(value) => Ok(Setting { name, value, line }),
            None => Err(format!("{name}: has a value of the wrong type; it must be {}", kind.wanted())),
        }
    }
}

impl Layer for File {
    fn value(&self, name: &str) -> Option<OsString> {
        Some(OsString::from(&self.setting(name)?.value))
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, UsageError> {
        Ok(self.setting(name).map(|setting| setting.value == "true"))
    }

    fn on_or_off(&self, name: &str) -> Option<bool> {
        self.setting(name)?.value.parse().ok()
    }

    fn spell(&self, name: &str) -> String {
        let line = self.setting(name).map_or(1, |setting| setting.line);
        format!("{}:{line}: {name}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn parse(text: &str) -> Result<File, String> {
        File::parse(SYSTEM.as_ref(), text, 0o600).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn every_option_of_a_run_can_be_set_but_the_key() {
        let definition = cli::command();
        let options = definition.get_arguments().map(|arg| arg.get_id().as_str());
        let mut options: Vec<_> = options.filter(|id| ![name::KEY, name::COMMAND].contains(id)).collect();
        let mut known: Vec<_> = option_names().collect();
        options.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, options);
    }

    #[test]
    fn values_are_what_would_be_typed() {
        let text = "# ours\nttl = \"1m\"\nrenew-every = 5\nkill-after = 0.5\nskip = true\nfail=false\n\nwait = true\n\
                    conflict-exit-code = 9\nstore = 'redis://h'\n\"min-hold\" = \"5\"";
        let file = parse(text).expect("is right");
        for (name, value, line) in [
            ("ttl", "1m", 2),
            ("renew-every", "5", 3),
            ("kill-after", "0.5", 4),
            ("wait", "true", 8),
            ("conflict-exit-code", "9", 9),
            ("store", "redis://h", 10),
            ("min-hold", "5", 11),
        ] {
            assert_eq!(file.value(name), Some(value.into()), "{name}");
            assert_eq!(file.spell(name), format!("/etc/lockrun.toml:{line}: {name}"));
        }
        assert_eq!(file.switch("skip").ok(), Some(Some(true)));
        assert_eq!(file.switch("fail").ok(), Some(Some(false)));
        assert_eq!(file.value("slots"), None);
        assert_eq!(file.switch("keep").ok(), Some(None));
        assert!(parse("").is_ok() && parse("\u{feff}ttl = 5\r\n# x").is_ok());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, wanted) in [
            ("\n\ntll = 5", "/etc/lockrun.toml:3: \"tll\""),
            ("renew_every = 5", "/etc/lockrun.toml:1: \"renew_every\" is not an option; renew-every is"),
            ("key = \"k\"", "/etc/lockrun.toml:1: \"key\""),
            ("token = \"k\"", "/etc/lockrun.toml:1: \"token\""),
            ("ttl = true", "/etc/lockrun.toml:1: ttl: has a value of the wrong type"),
            ("ttl = 0x10", "/etc/lockrun.toml:1: ttl: "),
            ("ttl = [5]", "/etc/lockrun.toml:1: ttl: "),
            ("ttl.x = 5", "/etc/lockrun.toml:1: ttl: "),
            ("ttl = 1979-05-27", "/etc/lockrun.toml:1: ttl: "),
            ("fail = \"true\"", "/etc/lockrun.toml:1: fail: "),
            ("fail = 1", "/etc/lockrun.toml:1: fail: "),
            ("store = 5", "/etc/lockrun.toml:1: store: "),
            ("slots = \"5\"", "/etc/lockrun.toml:1: slots: "),
            ("slots = 5.0", "/etc/lockrun.toml:1: slots: "),
            ("ttl = 5\n[lock]\nttl = 6", "/etc/lockrun.toml:2: \"lock\""),
            ("ttl = 5\nttl = 6", "/etc/lockrun.toml:2: "),
            ("ttl = 5\n\nttl 6", "/etc/lockrun.toml:3: "),
            ("ttl = soon", "/etc/lockrun.toml:1: "),
            ("ttl = \"5", "/etc/lockrun.toml:1: "),
            // The first of several errors is reported.
            ("zoo = 1\nant = 1", "/etc/lockrun.toml:1: \"zoo\""),
        ] {
            let wrong = parse(text).expect_err(text);
            assert!(wrong.starts_with(wanted), "{text:?}: {wrong}");
            assert!(!wrong.contains('\n'), "{wrong}");
        }
        let deep = format!("ttl = {}", "[".repeat(100_000));
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn no_part_of_a_broken_line_is_said_again() {
        for text in [
            "store = \"redis://u:secret@h",
            "store = redis://u:secret@h",
            "store \"redis://u:secret@h\"",
            "store = 'redis://u:secret@h' secret",
            "store = \"\\secret\"",
            "store = ['redis://u:secret@h']",
            "\"redis://u:secret@h\" = 1",
            "\"u:secret@h\" = 1",
            "\"u:secret@h&etcds://u:secret@h\" = 1",
        ] {
            let wrong = parse(text).expect_err(text);
            assert!(!wrong.contains("secret"), "{wrong}");
        }
    }

    #[test]
    fn a_password_that_others_can_read_is_worth_a_warning() {
        let warning = |url: &str, mode| {
            let text = format!("store = {url:?}");
            File::parse(SYSTEM.as_ref(), &text, mode).expect("is right").warning()
        };
        for url in ["redis://u:secret@h", "rediss://:secret@h/1", "redis+unix://:secret@/run/r", "postgres://u:p@h/d"] {
            for mode in [0o644, 0o640, 0o604] {
                let said = warning(url, mode).expect("is said");
                assert!(said.contains("/etc/lockrun.toml:1") && !said.contains("secret"), "{said}");
            }
            assert_eq!(warning(url, 0o600), None);
        }
        for url in ["redis://h", "redis://u@h", "redis://u:@h", "file:/a:b@c", "redis+unix:///run/a@/r.sock"] {
            assert_eq!(warning(url, 0o644), None, "{url}");
        }
    }

    #[test]
    fn the_users_file_is_where_the_environment_says() {
        let found = |xdg: Option<&str>, home: Option<&str>| {
            let environment = |name: &str| match name {
                "XDG_CONFIG_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                _ => None,
            };
            user_file(&environment).map_err(|wrong| wrong.to_string())
        };
        let at_home = || UserFile::Home("/h".into(), "/h/.config/lockrun/config.toml".into());
        assert_eq!(found(Some("/x"), Some("/h")), Ok(Some(UserFile::Xdg("/x/lockrun/config.toml".into()))));
        for xdg in [None, Some("")] {
            assert_eq!(found(xdg, Some("/h")), Ok(Some(at_home())));
            for home in [None, Some(""), Some("h")] {
                assert_eq!(found(xdg, home), Ok(None));
            }
        }
        for xdg in ["relative", "~/x"] {
            let wrong = found(Some(xdg), Some("/h")).expect_err("is refused");
            assert_eq!(wrong, "XDG_CONFIG_HOME is not an absolute path; correct it, or unset it");
        }
    }
}
