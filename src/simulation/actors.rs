//! The threads of simulated processes: coroutines, one of which runs at a time.
//!
//! An actor that waits is suspended. Then events happen, in the order of their times, until one wakes an actor. So the
//! order of everything depends on the seed alone. An actor whose process is killed unwinds from where it waits.

use std::cell::{Cell, RefCell, RefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::world::{Nanos, RunId, Side, World};
use crate::sys::clock::Moment;
use crate::sys::coroutine::{Coroutine, suspend};
use crate::sys::simulated::{self, Surroundings};
use crate::sys::wait::WakeReason;

/// The number of an actor.
pub type ActorId = usize;

/// An actor, as the world knows it.
pub struct Actor {
    pub run: RunId,
    pub side: Side,
    /// Distinguishes the present wait from earlier ones.
    pub generation: u64,
    pub is_killed: bool,
    pub has_ended: bool,
    /// Its thread, while it is suspended.
    thread: Option<Coroutine>,
}

/// A simulation.
struct Simulation {
    world: RefCell<World>,
    /// The actor that runs.
    current: Cell<ActorId>,
}

/// The running actor's access to the simulation.
#[derive(Clone)]
pub struct Port(Rc<Simulation>);

/// The payload with which an actor unwinds when its process is killed.
struct Killed;

thread_local! {
    static PORT: RefCell<Option<Port>> = const { RefCell::new(None) };
}

/// Runs `world` until nothing more happens, and returns its final state.
pub fn run(world: World) -> World {
    let simulation = Rc::new(Simulation { world: RefCell::new(world), current: Cell::new(0) });
    let port = Port(Rc::clone(&simulation));
    PORT.set(Some(port.clone()));
    simulated::enter(Some(Rc::new(InSimulation(port.clone()))));
    loop {
        let turn = port.world().until_a_turn();
        let Some(actor) = turn else { break };
        port.act(actor);
    }
    port.world().is_over = true;
    let actors = port.world().actors.len();
    for actor in 0..actors {
        let has_ended = port.world().actors[actor].has_ended;
        if !has_ended {
            port.act(actor);
        }
    }
    simulated::enter(None);
    PORT.set(None);
    drop(port);
    Rc::into_inner(simulation).expect("no actor is left").world.into_inner()
}

/// Creates an actor in the process on this `side` of a run. It starts when it is woken.
pub fn spawn(world: &mut World, run: RunId, side: Side, body: impl FnOnce(RunId) + 'static) -> ActorId {
    let me = world.actors.len();
    let act = move || {
        let port = Port::current();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            port.die_if_killed();
            body(run);
        }));
        let mut world = port.world();
        if let Err(payload) = ended
            && !payload.is::<Killed>()
        {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("?");
            world.fail(&format!("it panics: {text}"));
        }
        world.actors[me].has_ended = true;
    };
    let thread = Some(Coroutine::new(act));
    world.actors.push(Actor { run, side, generation: 0, is_killed: false, has_ended: false, thread });
    me
}

impl Port {
    /// Returns the port of the simulation on this thread.
    pub fn current() -> Port {
        PORT.with_borrow(Clone::clone).expect("this thread is a simulation")
    }

    /// Returns the world, to inspect and change it at this moment. Nothing else happens before the borrow ends.
    pub fn world(&self) -> RefMut<'_, World> {
        self.0.world.borrow_mut()
    }

    /// Returns the number of the actor that runs.
    pub fn me(&self) -> ActorId {
        self.0.current.get()
    }

    /// Waits until the actor is notified, or until the local clock shows `until`.
    pub fn wait(&self, until: Option<Moment>) {
        let mut world = self.world();
        if let Some(until) = until {
            let at = world.local_to_global(self.me(), until);
            world.wake_at(self.me(), at);
        }
        drop(world);
        suspend();
        self.die_if_killed();
    }

    /// Lets a moment pass, in which other events may happen, even the death of this process.
    pub fn step(&self) {
        let mut world = self.world();
        let now = world.now;
        world.wake_at(self.me(), now);
        drop(world);
        suspend();
        self.die_if_killed();
    }

    fn die_if_killed(&self) {
        let world = self.world();
        let is_killed = world.is_over || world.actors[self.me()].is_killed;
        drop(world);
        if is_killed {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Runs an actor until it waits or has ended.
    fn act(&self, actor: ActorId) {
        self.0.current.set(actor);
        let thread = self.world().actors[actor].thread.take();
        let mut thread = thread.expect("it does not run");
        if !thread.resume() {
            self.world().actors[actor].thread = Some(thread);
        }
    }
}

/// The clock and the waiting of the running actor.
struct InSimulation(Port);

impl Surroundings for InSimulation {
    fn now(&self) -> Moment {
        self.0.world().local_now(self.0.me())
    }

    fn wait(&self, until: Option<Moment>) -> WakeReason {
        loop {
            let signal = self.0.world().take_signal(self.0.me());
            if let Some(signal) = signal {
                return WakeReason::Signal(signal);
            }
            if until.is_some_and(|until| self.now() >= until) {
                return WakeReason::Time;
            }
            self.0.wait(until);
        }
    }
}

/// Returns a span in nanoseconds.
pub fn nanos(span: std::time::Duration) -> Nanos {
    Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}
