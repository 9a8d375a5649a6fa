//! The crontab that is shipped, run as cron runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::calm::in_time;
use crate::support::cron::command_of;
use crate::support::hand::all;
use crate::support::holder::write_script;
use crate::support::lockrun::PROGRAM;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, Lockrun, Output, Running, Store, eventually};

/// The number of ticks.
const TICKS: usize = 3;

/// A crontab: its variables, and the commands of its jobs.
struct Crontab {
    variables: BTreeMap<String, String>,
    commands: Vec<String>,
}

impl Crontab {
    fn shipped() -> Self {
        let path = root().join("examples/crontab");
        let text = fs::read_to_string(&path).expect("the crontab is shipped");
        let mut crontab = Self { variables: BTreeMap::new(), commands: Vec::new() };
        for line in text.lines().map(str::trim) {
            if !line.is_empty() && !line.starts_with('#') {
                crontab.read(line);
            }
        }
        crontab
    }

    fn read(&mut self, line: &str) {
        let is_name = |name: &str| name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
        match line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
            Some((name, value)) if is_name(name) => {
                let value = value.trim_matches('"').to_owned();
                self.variables.insert(name.to_owned(), value);
            }
            _ => self.commands.push(command_of(line)),
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A server: its home directory, and the environment that cron gives its jobs.
struct Server {
    home: TempDir,
    variables: BTreeMap<String, String>,
}

impl Server {
    /// Returns a server with the two programs installed, whose crontab names this store.
    fn new(crontab: &Crontab, store: &str) -> Self {
        let report = fs::read_to_string(root().join("examples/report.sh")).expect("it is shipped");
        Self::with_report(crontab, store, &report)
    }

    /// Returns a server on which this script is the job.
    fn with_report(crontab: &Crontab, store: &str, report: &str) -> Self {
        let home = TempDir::new().expect("a temporary directory");
        let programs = home.path().join("bin");
        fs::create_dir(&programs).expect("a directory");
        symlink(PROGRAM, programs.join("lockrun")).expect("a link");
        write_script(&programs, "report.sh", report);
        let mut variables = crontab.variables.clone();
        let path = variables.remove("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        // What every user of the example has to change: where the programs and the store are.
        for (name, value) in [
            ("PATH", format!("{}:{path}", programs.display())),
            ("LOCKRUN_STORE", store.to_owned()),
            ("HOME", home.path().display().to_string()),
            ("LOGNAME", "root".to_owned()),
            ("SHELL", "/bin/sh".to_owned()),
        ] {
            variables.insert(name.to_owned(), value);
        }
        Self { home, variables }
    }

    /// Starts a job as cron does: with a shell, in the home directory, without a terminal.
    fn start(&self, command: &str) -> Running {
        let call = Lockrun::bare().command(["/bin/sh", "-c", command]).directory(self.home.path());
        let call = self.variables.iter().fold(call, |call, (name, value)| call.env(name, value));
        call.spawn_alone()
    }

    /// Returns what its jobs have appended to their log.
    fn log(&self) -> Vec<String> {
        let log = self.variables.get("REPORT_LOG").expect("the crontab names a log");
        let text = fs::read_to_string(self.home.path().join(Path::new(log))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Returns what cron would send as mail: all output of a job.
fn mail(output: &Output) -> String {
    format!("{}{}", output.stdout(), output.stderr())
}

/// The period, instead of minutes and hours: longer than three servers take to start the job one after the other.
const PERIOD: Duration = Duration::from_secs(6);

/// Returns the crontab's command with that period instead of its longer one.
fn with_short_period(command: &str) -> String {
    let (before, after) = command.split_once("--once-per ").expect("the job is to run once a period");
    let (_, rest) = after.split_once(' ').expect("a duration, and more");
    format!("{before}--once-per {}s {rest}", PERIOD.as_secs())
}

/// Lets three servers start the job one after the other, in this order, and returns what cron would send as mail.
#[track_caller]
fn tick(servers: [&Server; 3], command: &str) -> Vec<String> {
    let began = Instant::now();
    // The servers' clocks differ a little: two start their jobs at once, and the third when these have ended.
    let mut outputs: Vec<Output> =
        [servers[0], servers[1]].map(|server| server.start(command)).map(Running::wait).into();
    outputs.push(servers[2].start(command).wait());
    in_time(began.elapsed(), PERIOD, "the period was over before all servers had started the job");
    outputs.iter().map(mail).filter(|mail| !mail.is_empty()).collect()
}

/// Waits until no run counts as done any more.
fn the_period_is_over(store: &Store) {
    eventually(LONG, "the period is over", || all(store).iter().all(|lock| lock["done_until"].is_null()));
}

// "One gets the lock and does the work, and the others end at once with status 0 and without a word": each tick's
// report runs exactly once on three servers, and the other two send no mail.
on_every_lease_store!(each_tick_runs_once_on_three_servers, |store| {
    let crontab = Crontab::shipped();
    assert!(crontab.variables.contains_key("LOCKRUN_STORE"), "the servers share a store");
    assert!(!crontab.commands.is_empty());
    let servers: Vec<Server> = (0..3).map(|_| Server::new(&crontab, &store.url())).collect();
    for number in 1..=TICKS {
        for command in &crontab.commands {
            // At each tick another server is late.
            let servers = [0, 1, 2].map(|turn| &servers[(turn + number) % 3]);
            let mails = tick(servers, &with_short_period(command));
            assert_eq!(mails.len(), 1, "mails of {command}: {mails:?}");
            assert!(mails[0].contains("Disk report"), "{mails:?}");
        }
        let done: usize = servers.iter().map(|server| server.log().len()).sum();
        assert_eq!(done, number * crontab.commands.len(), "reports after tick {number}");
        the_period_is_over(store);
    }
    let fences: BTreeSet<String> = servers
        .iter()
        .flat_map(Server::log)
        .filter(|line| line.split(' ').nth(3) == Some("nightly-report"))
        .map(|line| line.rsplit(' ').next().expect("a fence").to_owned())
        .collect();
    assert_eq!(fences.len(), TICKS, "each report under a fence of its own: {fences:?}");
});

// "If it failed, the job runs again on the next server that starts it."
on_every_lease_store!(the_next_server_runs_what_has_failed, |store| {
    let crontab = Crontab::shipped();
    let broken = Server::with_report(&crontab, &store.url(), "#!/bin/sh\necho broken; exit 3\n");
    let servers = [0, 1].map(|_| Server::new(&crontab, &store.url()));
    for command in &crontab.commands {
        let command = with_short_period(command);
        let began = Instant::now();
        broken.start(&command).wait().exited(3).printed("broken\n");
        let outputs = servers.each_ref().map(|server| server.start(&command).wait().exited(0));
        in_time(began.elapsed(), PERIOD, "the period was over before all servers had started the job");
        assert!(mail(&outputs[0]).contains("Disk report"), "{}", outputs[0]);
        assert_eq!(mail(&outputs[1]), "");
    }
    assert_eq!(servers.map(|server| server.log().len()), [crontab.commands.len(), 0]);
});

// "An unreachable store is an error": then every server sends mail, and no report runs.
#[test]
fn without_the_store_there_is_mail_and_no_report() {
    let crontab = Crontab::shipped();
    let mut server = Server::new(&crontab, "redis://127.0.0.1:1");
    server.variables.insert("LOCKRUN_STORE_RETRY".into(), "1s".into());
    for command in &crontab.commands {
        let output = server.start(command).wait().exited(69).said("127.0.0.1:1");
        assert_eq!(output.stdout(), "");
    }
    assert_eq!(server.log(), Vec::<String>::new());
}
