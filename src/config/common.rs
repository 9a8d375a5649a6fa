//! The settings that several commands share, each read in one place.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::layer::Layer;
use super::settings::{Settings, UsageError, read_from};
use crate::cli::{self, name};
use crate::lock::claim::Mode;
use crate::lock::holder::read_label;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::report::Verbosity;
use crate::run::outcome::HELD;
use crate::store::{Address, schemes};
use crate::text::duration;
use crate::text::escape::typed_path;
use crate::text::pattern::Pattern;

/// The default store: files in the default directory.
const DEFAULT_STORE: &str = "file:";
/// The default length of a lease.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The default limit for one request to the store, unless a short lease requires less.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of `--store-retry` for a run that waits: a restart or a failover is over by then.
const DEFAULT_STORE_RETRY: Duration = Duration::from_mins(1);
/// The message when the lock's name is missing.
pub(super) const NO_KEY: &str = "no key: name the lock with --key KEY";
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_SLOTS: u32 = 1000;

/// What to do when the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHeld {
    /// Name the holder, and exit 75.
    Fail,
    /// Exit 0, silently.
    Skip {
        /// Only if the lock has been held for less than this; otherwise as [`OnHeld::Fail`].
        held_less_than: Option<Duration>,
    },
    /// Wait in turn.
    Wait {
        /// For this long; `None` is for ever.
        span: Option<Duration>,
        /// Unless this many already wait; then as [`OnHeld::Fail`].
        max_waiting: Option<u32>,
    },
}

/// Which locks a command applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All locks of the store.
    All,
    /// The locks whose names match the pattern.
    Like(Pattern),
    /// This lock.
    One(Key),
}

impl Keys {
    /// Returns whether the command applies to this lock.
    pub fn includes(&self, key: &Key) -> bool {
        match self {
            Keys::All => true,
            Keys::Like(pattern) => pattern.matches(key.as_str()),
            Keys::One(one) => one == key,
        }
    }
}

/// Parses a duration that must not be 0. The error says what is wrong.
pub fn nonzero_duration(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        span => Ok(span),
    }
}

/// Parses an exit status. The error says what is wrong.
fn read_status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("{text:?} is not an exit status from 0 to 255"))
}

/// Parses the length of a lease. The error says what is wrong.
fn read_ttl(text: &str) -> Result<Ttl, String> {
    match text.trim() {
        "none" => Ok(Ttl::None),
        text => match duration::parse(text)? {
            span if span < MIN_TTL => Err(format!("{text:?} is less than 1s, the minimum")),
            span => Ok(Ttl::Lasts(span)),
        },
    }
}

/// Returns a word that is to be a lock's name. Fails if it is most likely something else: with a free lock of that name,
/// the command would succeed at nothing. Does not repeat it, as it may contain a password.
fn checked_word(word: &OsString) -> Result<&OsString, UsageError> {
    let text = word.to_string_lossy();
    if text.contains("://") || schemes().any(|scheme| text.starts_with(scheme)) {
        return Err(
            "the key is the URL of a store: name the store with --store; a key of this name is written --key=KEY"
                .into(),
        );
    }
    if Pattern::read(&text).is_some() {
        return Err(
            "the key is a pattern, which lockrun status alone takes: name one lock; a key with * or ? in its name is \
             written --key=KEY"
                .into(),
        );
    }
    Ok(word)
}

impl Settings<'_> {
    /// Returns the lock's name, from the command line alone: `LOCKRUN_KEY` inside a run names that run's own lock.
    pub fn key(&self) -> Result<Key, UsageError> {
        Ok(self.key_if_given()?.ok_or(NO_KEY)?)
    }

    /// Returns the lock's name, if one is given on the command line.
    pub fn key_if_given(&self) -> Result<Option<Key>, UsageError> {
        let typed = |name| self.typed().try_get_one::<OsString>(name).ok().flatten();
        let key = match (typed(name::KEY), typed(name::KEY_WORD)) {
            (Some(_), Some(_)) => return Err("the key is given twice, with --key and without".into()),
            (None, Some(word)) => Some(checked_word(word)?),
            (option, None) => option,
        };
        Ok(key.map(|key| Key::new(key)).transpose()?)
    }

    /// Returns which locks the command line names. A word without `--key` may be a pattern.
    pub fn keys(&self) -> Result<Keys, UsageError> {
        let word = self.typed().try_get_one::<OsString>(name::KEY_WORD).ok().flatten();
        let is_alone = !self.typed().contains_id(name::KEY);
        if let Some(pattern) = word.filter(|_| is_alone).and_then(|word| Pattern::read(word.to_str()?)) {
            return Ok(Keys::Like(pattern));
        }
        Ok(self.key_if_given()?.map_or(Keys::All, Keys::One))
    }

    /// Returns the name and the token of the lock that an earlier `acquire` or the enclosing run holds: from the
    /// command line, or else from the variables that both set.
    pub fn held_lock(&self) -> Result<(Key, Token), UsageError> {
        let key = match self.key_if_given()? {
            None => self.value(name::KEY, |key| Key::new(key.as_ref()))?,
            key => key,
        };
        let key = key.ok_or("no key: name the lock with --key KEY, or in LOCKRUN_KEY")?;
        let token = self.value(name::TOKEN, Token::parse)?;
        let token =
            token.ok_or("no token: give the one under which the lock is held with --token, or in LOCKRUN_TOKEN")?;
        Ok((key, token))
    }

    /// Returns how the lock may be shared, from the first layer that says so.
    pub fn mode(&self) -> Result<Mode, UsageError> {
        let slots = self.slots()?;
        let chosen = self.one_of(&[name::SLOTS, name::SHARED, name::EXCLUSIVE], |layer, name| match name {
            name::SLOTS => Ok(layer.value(name).map(|_| true)),
            _ => layer.switch(name),
        })?;
        Ok(match chosen {
            Some((_, name::SHARED)) => Mode::Shared,
            Some((_, name::SLOTS)) => Mode::Slots(slots.unwrap_or(1)),
            _ => Mode::EXCLUSIVE,
        })
    }

    /// As [`Settings::mode`], for a lock acquired by hand: from the command line alone. A setting that the script does
    /// not know must not make it share a lock that it expects to hold alone.
    pub fn mode_by_hand(&self) -> Result<Mode, UsageError> {
        let is_shared = self.typed().contains_id(name::SLOTS) || self.typed_switch(name::SHARED);
        if is_shared { self.mode() } else { Ok(Mode::EXCLUSIVE) }
    }

    /// Returns how many runs may hold the lock at once, if it is set.
    fn slots(&self) -> Result<Option<u32>, UsageError> {
        self.value(name::SLOTS, |text| match text.parse() {
            Ok(slots) if (1..=MAX_SLOTS).contains(&slots) => Ok(slots),
            _ => Err(format!("{text:?} is not a number from 1 to {MAX_SLOTS}")),
        })
    }

    /// Returns for how long after the start of a successful run no other is needed, if it is set.
    pub fn once_per(&self) -> Result<Option<Duration>, UsageError> {
        self.value(name::ONCE_PER, nonzero_duration)
    }

    /// Returns the user's own words for who asks for the lock, or why, if they are set.
    pub fn label(&self) -> Result<Option<String>, UsageError> {
        Ok(self.value(name::LABEL, read_label)?.flatten())
    }

    /// Returns the store: `--store`, or the URL in the file that `--store-file` names.
    pub fn store(&self) -> Result<Address, UsageError> {
        let names = [name::STORE, name::STORE_FILE];
        let Some((layer, which)) = self.one_of(&names, |layer, name| Ok(layer.value(name).map(|_| true)))? else {
            return Ok(Address::parse(DEFAULT_STORE)?);
        };
        let value = layer.value(which).unwrap_or_default();
        let spelled = layer.spell(which);
        let url = if which == name::STORE {
            value.into_string().map_err(|_| format!("{spelled}: is not valid UTF-8"))?
        } else {
            self.url_in(Path::new(&value)).map_err(|why| format!("{spelled}: {why}"))?
        };
        Ok(Address::parse(url.trim_start_matches('\u{feff}').trim()).map_err(|why| format!("{spelled}: {why}"))?)
    }

    /// Reads the file that contains the store's URL.
    fn url_in(&self, path: &Path) -> Result<String, String> {
        if path.as_os_str().is_empty() {
            return Err("is empty; it must name the file that contains the store's URL".into());
        }
        if path.as_os_str().as_encoded_bytes().windows(3).any(|part| part == b"://") {
            return Err("is a URL; it must be the path of a file that contains one".into());
        }
        let shown = typed_path(path);
        let url = (self.read_file)(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        if url.trim().is_empty() {
            return Err(format!("{shown} is empty; it must contain the store's URL"));
        }
        Ok(url)
    }

    /// Returns the limit for one request to the store, if it is set.
    pub fn store_timeout(&self) -> Result<Option<Duration>, UsageError> {
        self.value(name::STORE_TIMEOUT, nonzero_duration)
    }

    /// Returns for how long to go on trying a store that is away, for a run that does this when the lock is held.
    pub fn store_retry(&self, on_held: OnHeld) -> Result<Duration, UsageError> {
        let default = if let OnHeld::Wait { .. } = on_held { DEFAULT_STORE_RETRY } else { Duration::ZERO };
        Ok(self.duration(name::STORE_RETRY)?.unwrap_or(default))
    }

    /// Returns the limit for one request to the store that acquires or renews a lease of length `ttl`.
    pub fn store_timeout_within(&self, ttl: Ttl) -> Result<Duration, UsageError> {
        let default = match ttl {
            Ttl::Lasts(length) => DEFAULT_STORE_TIMEOUT.min(length / 6),
            Ttl::None => DEFAULT_STORE_TIMEOUT,
        };
        let timeout = self.store_timeout()?.unwrap_or(default);
        match ttl {
            Ttl::Lasts(length) if timeout >= length => Err(format!(
                "--store-timeout {} must be less than --ttl {}",
                duration::say_finely(timeout),
                duration::say_finely(length)
            )
            .into()),
            _ => Ok(timeout),
        }
    }

    /// Returns the lease's length, if it is set.
    pub fn ttl(&self) -> Result<Option<Ttl>, UsageError> {
        self.value(name::TTL, read_ttl)
    }

    /// Returns the lease's length, if it is on the command line.
    pub fn typed_ttl(&self) -> Result<Option<Ttl>, UsageError> {
        self.typed_value(name::TTL, read_ttl)
    }

    /// Returns what to do when the lock is held: `--fail`, `--skip` or `--wait`.
    pub fn on_held(&self) -> Result<OnHeld, UsageError> {
        self.on_held_among(&[name::FAIL, name::SKIP, name::WAIT])
    }

    /// As [`Settings::on_held`], for a lock acquired by hand. `--skip` is read from the command line alone: a setting
    /// that the script does not know must not let it continue without the lock.
    pub fn on_held_by_hand(&self) -> Result<OnHeld, UsageError> {
        if self.typed().contains_id(name::SKIP) {
            self.on_held()
        } else {
            self.on_held_among(&[name::FAIL, name::WAIT])
        }
    }

    fn on_held_among(&self, names: &[&str]) -> Result<OnHeld, UsageError> {
        // An empty `--skip=` means that the variable with the duration is not set. Taken as no duration, it would skip
        // a hanging job for ever.
        if self.typed().try_get_one::<OsString>(name::SKIP).ok().flatten().is_some_and(|value| value.is_empty()) {
            self.typed_value(name::SKIP, duration::parse)?;
        }
        let chosen = self.one_of(names, |layer, name| match name {
            name::FAIL => layer.switch(name),
            name::SKIP => {
                let value = layer.value(name).filter(|value| !value.is_empty());
                Ok(value.map(|_| layer.on_or_off(name).unwrap_or(true)))
            }
            _ => Ok(layer.value(name).map(|span| span != "false")),
        })?;
        let max_waiting =
            self.value(name::MAX_WAITING, |text| text.parse().map_err(|_| format!("{text:?} is not a whole number")))?;
        let span = |layer: &dyn Layer, name: &str| {
            Ok::<_, UsageError>(read_from(layer, name, duration::parse)?.unwrap_or_default())
        };
        if let Some((layer, name::WAIT)) = chosen {
            let is_for_ever = layer.value(name::WAIT).is_some_and(|value| value == cli::FOR_EVER || value == "true");
            let span = if is_for_ever { None } else { Some(span(layer, name::WAIT)?) };
            let is_to_wait = span != Some(Duration::ZERO);
            return Ok(if is_to_wait { OnHeld::Wait { span, max_waiting } } else { OnHeld::Fail });
        }
        if self.typed().contains_id(name::MAX_WAITING) {
            return Err("--max-waiting needs --wait".into());
        }
        match chosen {
            Some((layer, name::SKIP)) if layer.on_or_off(name::SKIP) == Some(true) => {
                Ok(OnHeld::Skip { held_less_than: None })
            }
            Some((layer, name::SKIP)) => match span(layer, name::SKIP)? {
                Duration::ZERO => Ok(OnHeld::Fail),
                span => Ok(OnHeld::Skip { held_less_than: Some(span) }),
            },
            _ => Ok(OnHeld::Fail),
        }
    }

    /// Returns the exit status when the lock is held.
    pub fn held_status(&self) -> Result<u8, UsageError> {
        Ok(self.value(name::CONFLICT, read_status)?.unwrap_or(HELD))
    }

    /// As [`Settings::held_status`], for a lock acquired by hand: from the command line alone, since it may be 0.
    pub fn held_status_by_hand(&self) -> Result<u8, UsageError> {
        Ok(self.typed_value(name::CONFLICT, read_status)?.unwrap_or(HELD))
    }

    /// Returns how much is printed.
    pub fn verbosity(&self) -> Result<Verbosity, UsageError> {
        Ok(match self.one_of(&[name::VERBOSE, name::QUIET], |layer, name| layer.switch(name))? {
            Some((_, name::VERBOSE)) => Verbosity::Verbose,
            Some(_) => Verbosity::Quiet,
            None => Verbosity::Normal,
        })
    }
}
