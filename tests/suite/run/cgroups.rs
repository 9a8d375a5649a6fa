//! Control groups are left as they are.

use crate::support::Lockrun;
use crate::support::store::on_files_and_redis;

// "Transparent": the command is in the control groups in which it would be without lockrun.
on_files_and_redis!(the_command_stays_in_its_control_groups, |store| {
    let call = Lockrun::new(store).key("cgroup").command(["cat", "/proc/self/cgroup"]);
    let (alone, under) = (call.alone().exited(0), call.run().exited(0).silent());
    assert_eq!(under.stdout(), alone.stdout());
});
