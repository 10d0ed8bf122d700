//! Real-time priority, lower ones, turns and timer slack.
//!
//! All concern the calling thread. Most are for one kind of work: to wake at a set time on a busy or a
//! borrowed machine, as a link emulator must. Refusal is normal for an unprivileged process; the caller
//! decides whether it can run without.

use std::{io, mem, time::Duration};

/// Gives the calling thread real-time priority (`SCHED_FIFO`), from 1 to 99, higher first.
///
/// Threads and processes that it starts do not inherit it (`SCHED_RESET_ON_FORK`): otherwise the
/// programs under test would compete with the emulator that they are tested on.
///
/// # Errors
/// [`SchedError::Priority`] outside the range, [`SchedError::RealTime`] if the kernel refuses, as
/// it does without `CAP_SYS_NICE`.
pub fn real_time(priority: u8) -> Result<(), SchedError> {
    if !(1..=99).contains(&priority) {
        return Err(SchedError::Priority { priority });
    }
    let param = libc::sched_param { sched_priority: priority.into() };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `param` is a valid sched_param for the length of this call; 0 means this thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(SchedError::RealTime { priority, source: io::Error::last_os_error() }),
    }
}

/// The processors that the calling thread may run on, by number.
///
/// # Errors
/// [`SchedError::Processors`] if the kernel does not say.
pub fn processors() -> Result<Vec<usize>, SchedError> {
    // SAFETY: a cpu_set_t is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is as long as is said, and lives through the call; 0 means this thread.
    match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } {
        // SAFETY: every number that is asked for is inside the set.
        0 => Ok((0..libc::CPU_SETSIZE as usize)
            .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) })
            .collect()),
        _ => Err(SchedError::Processors { source: io::Error::last_os_error() }),
    }
}

/// Lets the calling thread run on `processor` alone.
///
/// # Errors
/// [`SchedError::Processor`] if there is no such processor for this thread.
pub fn keep_to(processor: usize) -> Result<(), SchedError> {
    let refused = |source| SchedError::Processor { processor, source };
    let set = only(processor).map_err(refused)?;
    // SAFETY: `set` is valid for the length of this call; 0 means this thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(refused(io::Error::last_os_error())),
    }
}

/// Lets the calling thread run on `processor` alone, and only when nothing else wants to (`SCHED_IDLE`).
///
/// # Errors
/// [`SchedError::Background`] if there is no such processor for this thread, or the kernel refuses.
pub fn background(processor: usize) -> Result<(), SchedError> {
    let refused = |source| SchedError::Background { processor, source };
    let set = only(processor).map_err(refused)?;
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `set` and `param` are valid for the length of these calls; 0 means this thread.
    let done = unsafe {
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0
            && libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) == 0
    };
    if done { Ok(()) } else { Err(refused(io::Error::last_os_error())) }
}

/// The set of one processor.
fn only(processor: usize) -> io::Result<libc::cpu_set_t> {
    if processor >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: as in `processors`; `processor` is inside the set.
    Ok(unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        set
    })
}

/// Has the calling thread, and threads that it starts from now on, run in short turns: from Linux 6.12 on, such a thread that wakes
/// need not wait for the end of another's turn, which is some milliseconds. Earlier versions take no notice, and a thread that is
/// scheduled in another way than usual stays as it is.
///
/// # Errors
/// [`SchedError::Turns`] if the kernel refuses.
pub fn short_turns() -> Result<(), SchedError> {
    const TURN: Duration = Duration::from_micros(500);
    set_turns(nice(), TURN).map_err(|source| SchedError::Turns { source })
}

/// Lowers the priority of the calling thread (nice 10): while another thread wants all of its processor, it gets a tenth.
///
/// A thread cannot take that back without privileges, and should hold no lock for long that others wait for.
///
/// # Errors
/// [`SchedError::Turns`] if the kernel refuses.
pub fn give_way() -> Result<(), SchedError> {
    const NICE: libc::c_int = 10;
    set_turns(nice().max(NICE), Duration::ZERO).map_err(|source| SchedError::Turns { source })
}

/// Takes [`short_turns`] back for the calling thread: it waits its turn, at the priority that it has.
///
/// # Errors
/// [`SchedError::Turns`] if the kernel refuses.
pub fn usual_turns() -> Result<(), SchedError> {
    set_turns(nice(), Duration::ZERO).map_err(|source| SchedError::Turns { source })
}

fn nice() -> libc::c_int {
    // SAFETY: two numbers; 0 means this thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice value of the calling thread, and the length of its turns; zero is the kernel's own.
fn set_turns(nice: libc::c_int, turn: Duration) -> io::Result<()> {
    // SAFETY: a number; 0 means this thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attributes` says how long it is, and lives through the call; 0 means this thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets by how much the kernel may delay the calling thread's timers to join them with others: 1 ns
/// at least, 50 us unless set.
///
/// # Errors
/// [`SchedError::TimerSlack`] if the kernel refuses.
pub fn timer_slack(slack: Duration) -> Result<(), SchedError> {
    let nanos = libc::c_ulong::try_from(slack.as_nanos()).unwrap_or(libc::c_ulong::MAX).max(1);
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(SchedError::TimerSlack { slack, source: io::Error::last_os_error() }),
    }
}

/// Why the scheduling of a thread stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// No such priority.
    #[error("real-time priority {priority} is outside 1 to 99")]
    Priority {
        /// The priority asked for.
        priority: u8,
    },
    /// The kernel refused real-time priority.
    #[error("real-time priority {priority} refused; run as root or grant CAP_SYS_NICE")]
    RealTime {
        /// The priority asked for.
        priority: u8,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not say which processors there are.
    #[error("the processors of this thread are not known")]
    Processors {
        /// Why.
        source: io::Error,
    },
    /// The kernel refused to keep a thread to one processor.
    #[error("processor {processor} refused")]
    Processor {
        /// The processor asked for.
        processor: usize,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused to make a thread one of the background.
    #[error("idle priority on processor {processor} refused")]
    Background {
        /// The processor asked for.
        processor: usize,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused other turns or a lower priority.
    #[error("the scheduling class was refused")]
    Turns {
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the timer slack.
    #[error("timer slack of {slack:?} refused")]
    TimerSlack {
        /// The slack asked for.
        slack: Duration,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_outside_the_range_are_refused() {
        for priority in [0, 100, 255] {
            assert!(matches!(real_time(priority), Err(SchedError::Priority { .. })), "{priority}");
        }
    }

    #[test]
    fn real_time_is_not_inherited() {
        std::thread::spawn(|| {
            if let Err(refused) = real_time(1) {
                println!("skipped: {refused}");
                return;
            }
            let policy = |thread| {
                let path = format!("/proc/{thread}/stat");
                let text = std::fs::read_to_string(path).expect("proc is mounted");
                // The 41st field, the 39th after the name in parentheses.
                let (_, fields) = text.rsplit_once(')').expect("stat has a name");
                fields.split_whitespace().nth(38).expect("stat has a policy").to_owned()
            };
            assert_eq!(policy("thread-self"), "1");
            let child = std::thread::spawn(move || policy("thread-self")).join();
            assert_eq!(child.expect("reads its own stat"), "0");
        })
        .join()
        .expect("the thread ends in order");
    }

    #[test]
    fn a_background_thread_keeps_to_its_processor() {
        std::thread::spawn(|| {
            let processors = processors().expect("the kernel says");
            let last = *processors.last().expect("this thread runs somewhere");
            background(last).expect("idle priority is free to all");
            assert_eq!(super::processors().expect("the kernel says"), [last]);
            assert!(matches!(background(usize::MAX), Err(SchedError::Background { .. })));
        })
        .join()
        .expect("the thread ends in order");
    }

    #[test]
    fn a_thread_keeps_to_its_processor() {
        std::thread::spawn(|| {
            let first = processors().expect("the kernel says")[0];
            keep_to(first).expect("it may run there");
            assert_eq!(super::processors().expect("the kernel says"), [first]);
            assert!(matches!(keep_to(usize::MAX), Err(SchedError::Processor { .. })));
        })
        .join()
        .expect("the thread ends in order");
    }

    /// Nice value and turn in nanoseconds of this thread, as the kernel has them.
    fn turns() -> (i32, u64) {
        // SAFETY: numbers, for which zero is a value.
        let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
        let bytes = size_of_val(&attributes);
        // SAFETY: as long as is said, and lives through the call; 0 means this thread.
        let got = unsafe {
            libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes as u32, 0)
        };
        assert_eq!(got, 0, "{}", io::Error::last_os_error());
        (attributes.sched_nice, attributes.sched_runtime)
    }

    #[test]
    fn turns_are_those_of_a_thread_and_those_it_starts() {
        let before = turns();
        let thread = std::thread::spawn(move || {
            short_turns().expect("less is free to all");
            let short = turns();
            let started = std::thread::spawn(|| {
                let inherited = turns();
                usual_turns().expect("the usual is free to all");
                let usual = turns();
                give_way().expect("less is free to all");
                (inherited, usual, turns())
            });
            let (inherited, usual, given_way) = started.join().expect("the thread ends in order");
            assert_eq!((inherited, turns(), usual), (short, short, before));
            (short, given_way)
        });
        let (short, given_way) = thread.join().expect("the thread ends in order");
        assert_eq!(turns(), before);
        assert_eq!((short.0, given_way.0), (before.0, before.0.max(10)));
        // Older kernels know no turns, and say nothing of them.
        if before.1 > 0 {
            assert!(short.1 < before.1, "{short:?} {before:?}");
            assert_eq!(given_way.1, before.1);
        }
    }

    #[test]
    fn timer_slack_is_set() {
        std::thread::spawn(|| {
            timer_slack(Duration::from_micros(1)).expect("slack is free to all");
            let text = std::fs::read_to_string("/proc/thread-self/timerslack_ns");
            // The file is absent where the kernel hides it.
            if let Ok(text) = text {
                assert_eq!(text.trim(), "1000");
            }
        })
        .join()
        .expect("the thread ends in order");
    }
}
