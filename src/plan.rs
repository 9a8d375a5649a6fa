//! What was typed and what stands in the environment become one checked plan. Pure, but for the file that
//! `--store-file` names, which a function reads that is handed in.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::cli::{self, name};
use crate::duration;
use crate::key::Key;
use crate::lease::Terms;
use crate::outcome::HELD;
use crate::report::Verbosity;
use crate::store::Address;
use crate::supervise::Descendants;

/// Everything that a run needs to know, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lock's name.
    pub key: Key,
    /// Where it lives.
    pub store: Address,
    /// What to do when it is held.
    pub on_held: OnHeld,
    /// The exit status when it is held.
    pub held_status: u8,
    /// Whether the lease ends by itself, after `terms.ttl`.
    pub expires: bool,
    /// The lengths of time that the lease lives by.
    pub terms: Terms,
    /// Whether COMMAND is stopped when the lease is lost.
    pub kill_on_lost: bool,
    /// How long COMMAND may run.
    pub max_runtime: Option<Duration>,
    /// What to do about processes that COMMAND leaves behind.
    pub descendants: Descendants,
    /// How many runs may hold the lock at once.
    pub slots: u32,
    /// Whether the lock stays when COMMAND has succeeded.
    pub keep: bool,
    /// How long the lock is held at least.
    pub min_hold: Duration,
    /// COMMAND and its arguments.
    pub argv: Vec<OsString>,
    /// How much to say.
    pub verbosity: Verbosity,
}

/// What to do when the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHeld {
    /// Say who holds it, and exit 75.
    Fail,
    /// Exit 0, silently.
    Skip,
    /// Wait for ever, or that long.
    Wait(Option<Duration>),
}

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_secs(1);

/// One place that options come from.
trait Layer {
    /// The value of an option that takes one.
    fn value(&self, name: &str) -> Option<OsString>;
    /// Whether an option that takes none is on, or off.
    fn switch(&self, name: &str) -> Result<Option<bool>, String>;
    /// The option as it is written there, for messages.
    fn spell(&self, name: &str) -> String;
}

/// The words of the command line.
struct Typed<'a>(&'a ArgMatches);

impl Layer for Typed<'_> {
    fn value(&self, name: &str) -> Option<OsString> {
        if name == name::CONFLICT {
            return self.0.get_one::<u8>(name).map(|status| status.to_string().into());
        }
        let text = |name| self.0.try_get_one::<String>(name).ok().flatten().map(OsString::from);
        self.0.try_get_one::<OsString>(name).ok().flatten().cloned().or_else(|| text(name))
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, String> {
        Ok((self.0.value_source(name) == Some(ValueSource::CommandLine)).then(|| self.0.get_flag(name)))
    }

    fn spell(&self, name: &str) -> String {
        format!("--{name}")
    }
}

/// `LOCKRUN_…` variables.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Layer for Environment<'_> {
    fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(&self.spell(name))
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.to_str().map(str::to_ascii_lowercase).as_deref() {
            Some("") => Ok(None),
            Some("1" | "true" | "yes" | "on") => Ok(Some(true)),
            Some("0" | "false" | "no" | "off") => Ok(Some(false)),
            _ => Err(format!("{}: {} is neither true nor false", self.spell(name), value.display())),
        }
    }

    fn spell(&self, name: &str) -> String {
        let mut variable = String::with_capacity(32);
        variable.push_str("LOCKRUN_");
        variable
            .extend(name.bytes().map(|byte| char::from(if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() })));
        variable
    }
}

/// The layers, strongest first.
struct Layers<'a>(Vec<Box<dyn Layer + 'a>>);

impl Layers<'_> {
    /// The value of an option from the strongest layer that has it, read by `read`.
    fn value<T>(&self, name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        for layer in &self.0 {
            if let Some(value) = layer.value(name) {
                let text = value.to_str().ok_or_else(|| format!("{}: is not valid UTF-8", layer.spell(name)))?;
                return read(text).map(Some).map_err(|why| format!("{}: {why}", layer.spell(name)));
            }
        }
        Ok(None)
    }

    fn duration(&self, name: &str) -> Result<Option<Duration>, String> {
        self.value(name, duration::parse)
    }

    /// The strongest layer that has any of `names`, which exclude each other, and the one that it has.
    fn one_of<'n>(&self, names: &[&'n str], switches: &[&str]) -> Result<Option<(&dyn Layer, &'n str)>, String> {
        for layer in &self.0 {
            let mut there = Vec::new();
            for name in names {
                let is = if switches.contains(name) {
                    layer.switch(name)? == Some(true)
                } else {
                    layer.value(name).is_some()
                };
                if is {
                    there.push(*name);
                }
            }
            match there[..] {
                [] => {}
                [one] => return Ok(Some((layer.as_ref(), one))),
                [one, other, ..] => {
                    return Err(format!("{} and {} exclude each other", layer.spell(one), layer.spell(other)));
                }
            }
        }
        Ok(None)
    }
}

/// Makes the plan of a run from the matches of [`cli::command`], the environment, and a reader of files. On failure says
/// what is wrong, in terms of what the user wrote.
pub fn make(
    matches: &ArgMatches,
    environment: &dyn Fn(&str) -> Option<OsString>,
    read_file: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Plan, String> {
    let layers = Layers(vec![Box::new(Typed(matches)), Box::new(Environment(environment))]);
    let key = matches.get_one::<OsString>(name::KEY).ok_or("no key: name the lock with --key KEY")?;
    let key = Key::new(key)?;
    let argv = argv(matches, &layers)?;
    let store = store(&layers, read_file)?;
    let held_status = layers.value(name::CONFLICT, |text| {
        text.parse().map_err(|_| format!("{text:?} is not an exit status from 0 to 255"))
    })?;
    let (expires, terms) = lease(&layers, &store)?;
    Ok(Plan {
        key,
        store,
        on_held: on_held(&layers)?,
        held_status: held_status.unwrap_or(HELD),
        expires,
        terms,
        kill_on_lost: layers
            .value(name::ON_LOST, |text| match text {
                "kill" => Ok(true),
                "warn" => Ok(false),
                _ => Err(format!("{text:?} is neither kill nor warn")),
            })?
            .unwrap_or(true),
        max_runtime: layers.value(name::MAX_RUNTIME, positive)?,
        descendants: layers
            .value(name::DESCENDANTS, |text| match text {
                "leave" => Ok(Descendants::Leave),
                "wait" => Ok(Descendants::Wait),
                "kill" => Ok(Descendants::Kill),
                _ => Err(format!("{text:?} is none of leave, wait and kill")),
            })?
            .unwrap_or(Descendants::Leave),
        slots: 1,
        keep: false,
        min_hold: Duration::ZERO,
        argv,
        verbosity: match layers.one_of(&[name::VERBOSE, name::QUIET], &[name::VERBOSE, name::QUIET])? {
            Some((_, name::VERBOSE)) => Verbosity::Verbose,
            Some(_) => Verbosity::Quiet,
            None => Verbosity::Normal,
        },
    })
}

/// The words to execute.
fn argv(matches: &ArgMatches, layers: &Layers<'_>) -> Result<Vec<OsString>, String> {
    let by_sh = |string: &OsString| vec!["sh".into(), "-c".into(), string.clone()];
    let words: Vec<OsString> = matches.get_many(name::COMMAND).unwrap_or_default().cloned().collect();
    match (words.first(), matches.get_one::<OsString>(name::COMMAND_STRING)) {
        (Some(_), Some(_)) => Err("--command and COMMAND exclude each other".into()),
        (None, Some(string)) => Ok(by_sh(string)),
        (Some(first), None) if first.is_empty() => Err("the command is an empty word".into()),
        (Some(_), None) => Ok(words),
        (None, None) => match layers.value(name::COMMAND_STRING, |text| Ok(OsString::from(text)))? {
            Some(string) => Ok(by_sh(&string)),
            None => Err("no command: give the COMMAND to run, or one for sh with --command".into()),
        },
    }
}

/// Where the lock lives.
fn store(layers: &Layers<'_>, read_file: &dyn Fn(&Path) -> io::Result<String>) -> Result<Address, String> {
    let Some((layer, which)) = layers.one_of(&[name::STORE, name::STORE_FILE], &[])? else {
        return Ok(Address::File(None));
    };
    let value = layer.value(which).unwrap_or_default();
    let spelled = layer.spell(which);
    let url = if which == name::STORE {
        value.into_string().map_err(|_| format!("{spelled}: is not valid UTF-8"))?
    } else {
        if value.is_empty() {
            return Err(format!("{spelled}: is empty; it must name the file that has the store's URL in it"));
        }
        let path = Path::new(&value);
        if value.as_encoded_bytes().windows(3).any(|part| part == b"://") {
            return Err(format!("{spelled}: is a URL, and must be the path of a file that has one in it"));
        }
        let url = read_file(path).map_err(|error| format!("{spelled}: cannot read {}: {error}", path.display()))?;
        if url.trim().is_empty() {
            return Err(format!("{spelled}: {} is empty; it must hold the store's URL", path.display()));
        }
        url
    };
    Address::parse(url.trim_start_matches('\u{feff}').trim()).map_err(|why| format!("{spelled}: {why}"))
}

fn on_held(layers: &Layers<'_>) -> Result<OnHeld, String> {
    let names = [name::FAIL, name::SKIP, name::WAIT];
    let Some((layer, which)) = layers.one_of(&names, &[name::FAIL, name::SKIP])? else {
        return Ok(OnHeld::Fail);
    };
    Ok(match which {
        name::FAIL => OnHeld::Fail,
        name::SKIP => OnHeld::Skip,
        _ => {
            let value = layer.value(which).unwrap_or_default().to_string_lossy().into_owned();
            if value == cli::FOR_EVER {
                return Ok(OnHeld::Wait(None));
            }
            match duration::parse(&value).map_err(|why| format!("{}: {why}", layer.spell(which)))? {
                Duration::ZERO => OnHeld::Fail,
                span => OnHeld::Wait(Some(span)),
            }
        }
    })
}

/// Whether the lease ends by itself, and the lengths of time that it lives by.
fn lease(layers: &Layers<'_>, store: &Address) -> Result<(bool, Terms), String> {
    let ttl = layers.value(name::TTL, |text| match text.trim() {
        "none" => Ok(None),
        text => match duration::parse(text)? {
            span if span < MIN_TTL => Err(format!("{text:?} is below 1s, the least")),
            span => Ok(Some(span)),
        },
    })?;
    let renew_every = layers.value(name::RENEW_EVERY, positive)?;
    let kill_after = layers.duration(name::KILL_AFTER)?;
    let store_timeout = layers.value(name::STORE_TIMEOUT, positive)?;
    let expires = ttl != Some(None);
    let length = ttl.flatten().unwrap_or(DEFAULT_TTL);
    let at_most = |most: u64, part: u32| Duration::from_secs(most).min(length / part);
    let terms = Terms {
        ttl: length,
        renew_every: renew_every.unwrap_or(length / 3),
        kill_after: kill_after.unwrap_or(at_most(10, 3)),
        store_timeout: store_timeout.unwrap_or(at_most(5, 6)),
    };
    // Files have no lease: there, a long --kill-after alone is nothing to complain of.
    let concerned = store.has_leases() || ttl.is_some() || renew_every.is_some() || store_timeout.is_some();
    if expires && concerned {
        terms.check()?;
    }
    Ok((expires, terms))
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        span => Ok(span),
    }
}
