//! Every block of commands runs, each against stores of its own, and prints what the page shows.
//!
//! Programs that a block calls and that are not lockrun's, such as `./report.sh`, are empty ones. The hosts of the
//! pages are servers of the test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::alike::canonical;
use super::pages::{Block, Page, root};
use super::prepared::{self, Preparation};
use crate::support::calm::{judge, late};
use crate::support::cron::command_of;
use crate::support::holder::write_script;
use crate::support::lockrun::PROGRAM;
use crate::support::processes::PATH;
use crate::support::{Etcd, LeaseServer as _, Lockrun, Mariadb, Output, Postgres, Redis};

/// Stands on a line of its own between the outputs of two commands.
const MARK: &str = "\u{1e}";

/// What a block's commands can call beside programs. Each wait ends with the test's own patience.
const FUNCTIONS: &str = "
    until_held() { until lockrun status --json | grep -q '\"held\": true'; do sleep 0.02; done; }
    until_waiting() { until test \"$(lockrun status --json | grep -c waited_ms)\" -eq \"$1\"; do sleep 0.02; done; }
    mark() { printf '\\036\\n'; return \"$1\"; }
";

/// The surroundings of a block.
struct World {
    home: TempDir,
    redis: Option<Redis>,
    postgres: Option<Postgres>,
    mariadb: Option<Mariadb>,
    etcd: Option<Etcd>,
}

impl World {
    fn new(block: &Block, preparation: &Preparation) -> Self {
        let wants_redis = preparation.redis.is_some() || block.text.contains("redis.example.com");
        let wants_postgres = preparation.postgres || block.text.contains("@db.example.com");
        let world = Self {
            home: TempDir::new().expect("a temporary directory"),
            redis: wants_redis.then(|| Redis::with_options(preparation.redis.unwrap_or_default())),
            postgres: wants_postgres.then(Postgres::start),
            mariadb: block.text.contains("@mysql.example.com").then(Mariadb::start),
            etcd: block.text.contains("etcd").then(|| Etcd::of(3)),
        };
        if let Some(postgres) = &world.postgres {
            postgres.ask("CREATE ROLE reports LOGIN");
            postgres.create_database("jobs OWNER reports");
        }
        if let Some(mariadb) = &world.mariadb {
            mariadb.ask("CREATE USER reports");
            mariadb.ask("CREATE DATABASE jobs");
            mariadb.ask("GRANT ALL ON jobs.* TO reports");
        }
        let home = world.home.path();
        fs::create_dir(home.join("bin")).expect("a directory");
        symlink(PROGRAM, home.join("bin/lockrun")).expect("a link");
        symlink(root().join("examples"), home.join("examples")).expect("a link");
        world.write_programs(&block.text);
        world
    }

    /// Writes an empty program for each that is called and is not there.
    fn write_programs(&self, text: &str) {
        let home = self.home.path();
        for word in text.split(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | ';' | ')')) {
            let path = match word.strip_prefix("./") {
                Some(path) => home.join(path),
                None if word.strip_suffix(".sh").is_some_and(|name| !name.contains('/')) => home.join("bin").join(word),
                None => continue,
            };
            if !path.exists() {
                let directory = path.parent().expect("a file");
                fs::create_dir_all(directory).expect("a directory");
                write_script(
                    directory,
                    path.file_name().and_then(|name| name.to_str()).expect("a name"),
                    "#!/bin/sh\n",
                );
            }
        }
    }

    /// Returns `text` with the servers and directories of this world.
    fn adapted(&self, text: &str, preparation: &Preparation) -> String {
        let home = self.home.path().display().to_string();
        let mut text = text.replace("--store file: ", &format!("--store file:{home}/locks "));
        if let Some(redis) = &self.redis {
            let here = format!("redis://127.0.0.1:{}", redis.port());
            text = text.replace("redis://redis.example.com", &here);
            text = text.replace("redis://localhost", &format!("redis://localhost:{}", redis.port()));
        }
        if let Some(postgres) = &self.postgres {
            text = text.replace("@db.example.com", &format!("@127.0.0.1:{}", postgres.port()));
            text = text.replace("-h db.example.com", "-h 127.0.0.1");
        }
        if let Some(mariadb) = &self.mariadb {
            text = text.replace("@mysql.example.com", &format!("@127.0.0.1:{}", mariadb.port()));
        }
        if let Some(etcd) = &self.etcd {
            text = text.replace("etcd://etcd-1,etcd-2,etcd-3", &etcd.url_at(etcd.port()));
        }
        preparation.replaced.iter().fold(text, |text, (from, to)| text.replace(from, &to.replace("HOME", &home)))
    }

    /// Returns a call of a shell with this script in this world.
    fn shell(&self, script: &str, preparation: &Preparation) -> Lockrun {
        let home = self.home.path();
        let store = match (&self.redis, preparation.redis) {
            (Some(redis), Some(_)) => redis.url(),
            _ => format!("file:{}/locks", home.display()),
        };
        let script = format!("{FUNCTIONS}\nset -a\n{}\nset +a\n{script}", preparation.before);
        let call = Lockrun::bare()
            .command(["sh", "-c", &script])
            .directory(home)
            .env("HOME", home)
            .env("PATH", format!("{}/bin:{PATH}", home.display()))
            .env("LOCKRUN_STORE", store)
            .env(
                "ETCDCTL_ENDPOINTS",
                self.etcd.as_ref().map_or(String::new(), |it| format!("127.0.0.1:{}", it.port())),
            );
        self.postgres.as_ref().map_or(call.clone(), |postgres| postgres.known_to(call))
    }
}

/// A command of a session, and what it prints.
struct Step {
    command: String,
    output: String,
}

/// Returns the commands of a session at a prompt, and what each prints.
fn session(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: String::new() });
        } else {
            let step = steps.last_mut().unwrap_or_else(|| panic!("{}: begins without a prompt", block.place()));
            step.output.extend([line, "\n"]);
        }
    }
    steps
}

/// Runs a session, and compares what each command prints.
fn run_session(block: &Block, preparation: &Preparation) {
    let world = World::new(block, preparation);
    let steps = session(block);
    let mut script = "exec 2>&1\n".to_owned();
    for step in &steps {
        let command = world.adapted(&step.command, preparation);
        let wait = if command.trim_end().ends_with('&') { "until_held\n" } else { "" };
        script.extend([&command, "\nmark $?\n", wait]);
    }
    let output = world.shell(&script, preparation).spawn_alone();
    let output = output.wait().stdout();
    let printed: Vec<&str> = output.split(&format!("{MARK}\n")).collect();
    assert_eq!(printed.len(), steps.len() + 1, "{}: {output}", block.place());
    for (step, printed) in steps.iter().zip(printed) {
        if canonical(&step.output) != canonical(printed) {
            late(&format!(
                "{}: {} printed\n{printed}\nand the page shows\n{}",
                block.place(),
                step.command,
                step.output
            ));
        }
    }
}

/// Runs a script, which must succeed and say nothing on standard error.
fn run_script(block: &Block, preparation: &Preparation) {
    let output = output_of(block, preparation);
    if output.status != Some(0) || !output.stderr.is_empty() {
        late(&format!("{}: {output}", block.place()));
    }
}

/// Runs a script to its end.
pub(super) fn output_of(block: &Block, preparation: &Preparation) -> Output {
    let world = World::new(block, preparation);
    let text = world.adapted(&block.text, preparation);
    write_script(world.home.path(), "block.sh", &text);
    let how = if text.starts_with("#!") { "./block.sh" } else { "sh ./block.sh" };
    world.shell(how, preparation).spawn_alone().wait()
}

/// Runs the jobs of a crontab as cron would, one after the other.
fn run_crontab(block: &Block, preparation: &Preparation) {
    let is_variable = |line: &str| {
        line.split('=').next().is_some_and(|name| name.chars().all(|c| c == '_' || c.is_ascii_uppercase()))
    };
    let lines =
        block.text.lines().map(|line| if is_variable(line) { format!("export {line}") } else { command_of(line) });
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    let script = Block { page: block.page.clone(), line: block.line, language: "sh".into(), text };
    run_script(&script, preparation);
}

/// Runs a command under the settings of a configuration file.
fn run_configuration(block: &Block, preparation: &Preparation) {
    let world = World::new(block, preparation);
    let home = world.home.path();
    let text = block.text.replace("/etc/lockrun.store", &home.join("store").display().to_string());
    fs::create_dir_all(home.join(".config/lockrun")).expect("a directory");
    fs::write(home.join(".config/lockrun/config.toml"), text).expect("a file");
    fs::write(home.join("store"), format!("file:{}/locks", home.display())).expect("a file");
    let call = world.shell("unset LOCKRUN_STORE; exec lockrun --key configured -- echo done", preparation);
    call.spawn_alone().wait().exited(0).printed("done\n").silent();
    assert!(home.join("locks").is_dir(), "{}: the store is another one", block.place());
}

/// Checks that a shell can parse a script.
fn parse(block: &Block) {
    let call = Lockrun::bare().command(["sh", "-n"]).stdin(block.text.as_bytes());
    call.alone().exited(0).silent();
}

/// Runs all blocks of a page.
fn run_page(path: &str) {
    let mut count = 0;
    for block in Page::read(Path::new(path).to_owned()).blocks() {
        let preparation = prepared::of(&block);
        match block.language.as_str() {
            "sh" if prepared::is_parsed_only(&block) => parse(&block),
            "sh" => judge(|| run_script(&block, preparation)),
            "console" => judge(|| run_session(&block, preparation)),
            "crontab" => judge(|| run_crontab(&block, preparation)),
            "toml" => run_configuration(&block, preparation),
            // Not commands.
            "text" | "json" | "perl" => continue,
            other => panic!("{}: a block in {other:?}", block.place()),
        }
        count += 1;
    }
    assert!(count > 0, "{path} has no block of commands");
}

/// Makes a test for each page with blocks of commands.
macro_rules! pages {
    ($($name:ident: $path:literal),* $(,)?) => {
        $(
            // "Every command block of README and docs runs in a test, with its output."
            #[test]
            fn $name() {
                run_page($path);
            }
        )*

        const TESTED: &[&str] = &[$($path),*];
    };
}

pages! {
    readme: "README.md",
    doctor: "docs/doctor.md",
    etcd: "docs/etcd.md",
    files: "docs/files.md",
    guarantees: "docs/guarantees.md",
    overview: "docs/internals/overview.md",
    json: "docs/json.md",
    mysql: "docs/mysql.md",
    postgresql: "docs/postgresql.md",
    recipes: "docs/recipes.md",
    redis: "docs/redis.md",
    reference: "docs/reference.md",
    sequences: "docs/sequences.md",
    stores: "docs/stores.md",
}

// No page with commands is left out.
#[test]
fn every_page_with_commands_is_tested() {
    for page in super::pages::all() {
        let has_commands =
            page.blocks().iter().any(|block| matches!(block.language.as_str(), "sh" | "console" | "crontab" | "toml"));
        assert_eq!(TESTED.contains(&page.name().as_str()), has_commands, "{}", page.name());
    }
}
