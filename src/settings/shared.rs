//! The settings that several commands share, each read in one way.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{Settings, Wrong};
use crate::cli::{self, name};
use crate::duration;
use crate::key::Key;
use crate::outcome::HELD;
use crate::report::Verbosity;
use crate::store::Address;

/// The length of a lease, if nothing else is set.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_secs(1);

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

/// How long a lease lasts from one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// That long.
    Lasts(Duration),
    /// It never ends by itself.
    None,
}

/// Reads a duration that must not be 0. On failure says what is wrong.
pub fn at_least_a_moment(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        span => Ok(span),
    }
}

impl Settings<'_> {
    /// The lock's name: from the command line alone, since a run tells its command a `LOCKRUN_KEY`.
    pub fn key(&self) -> Result<Key, Wrong> {
        let key = self.typed().get_one::<OsString>(name::KEY).ok_or("no key: name the lock with --key KEY")?;
        Ok(Key::new(key)?)
    }

    /// Where the lock lives: `--store`, or the URL in the file that `--store-file` names.
    pub fn store(&self) -> Result<Address, Wrong> {
        let names = [name::STORE, name::STORE_FILE];
        let Some((layer, which)) = self.one_of(&names, |layer, name| Ok(layer.value(name).map(|_| true)))? else {
            return Ok(Address::File(None));
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

    /// The text of the file that holds a store's URL.
    fn url_in(&self, path: &Path) -> Result<String, String> {
        if path.as_os_str().is_empty() {
            return Err("is empty; it must name the file that has the store's URL in it".into());
        }
        if path.as_os_str().as_encoded_bytes().windows(3).any(|part| part == b"://") {
            return Err("is a URL, and must be the path of a file that has one in it".into());
        }
        let url = (self.read_file)(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if url.trim().is_empty() {
            return Err(format!("{} is empty; it must hold the store's URL", path.display()));
        }
        Ok(url)
    }

    /// The longest that one request to the store may take.
    pub fn store_timeout(&self) -> Result<Option<Duration>, Wrong> {
        self.value(name::STORE_TIMEOUT, at_least_a_moment)
    }

    /// The lease's length, if it is set.
    pub fn ttl(&self) -> Result<Option<Ttl>, Wrong> {
        self.value(name::TTL, |text| match text.trim() {
            "none" => Ok(Ttl::None),
            text => match duration::parse(text)? {
                span if span < MIN_TTL => Err(format!("{text:?} is below 1s, the least")),
                span => Ok(Ttl::Lasts(span)),
            },
        })
    }

    /// What to do when the lock is held: `--fail`, `--skip` or `--wait`.
    pub fn on_held(&self) -> Result<OnHeld, Wrong> {
        let names = [name::FAIL, name::SKIP, name::WAIT];
        let chosen = self.one_of(&names, |layer, name| match name {
            name::WAIT => Ok(layer.value(name).map(|span| span != "false")),
            _ => layer.switch(name),
        })?;
        Ok(match chosen {
            None | Some((_, name::FAIL)) => OnHeld::Fail,
            Some((_, name::SKIP)) => OnHeld::Skip,
            Some((layer, which)) => {
                let value = layer.value(which).unwrap_or_default().to_string_lossy().into_owned();
                if value == cli::FOR_EVER || value == "true" {
                    return Ok(OnHeld::Wait(None));
                }
                match duration::parse(&value).map_err(|why| format!("{}: {why}", layer.spell(which)))? {
                    Duration::ZERO => OnHeld::Fail,
                    span => OnHeld::Wait(Some(span)),
                }
            }
        })
    }

    /// The exit status when the lock is held.
    pub fn held_status(&self) -> Result<u8, Wrong> {
        let status = self.value(name::CONFLICT, |text| {
            text.parse().map_err(|_| format!("{text:?} is not an exit status from 0 to 255"))
        })?;
        Ok(status.unwrap_or(HELD))
    }

    /// How much to say.
    pub fn verbosity(&self) -> Result<Verbosity, Wrong> {
        Ok(match self.one_of(&[name::VERBOSE, name::QUIET], |layer, name| layer.switch(name))? {
            Some((_, name::VERBOSE)) => Verbosity::Verbose,
            Some(_) => Verbosity::Quiet,
            None => Verbosity::Normal,
        })
    }
}
