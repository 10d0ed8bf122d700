//! Processes that die, and a link that is cut.

use std::time::{Duration, SystemTime};

use futures::StreamExt;
use tidegate_client::{
    Code, Delivery, Event, Instant, SubscribeRequest, Subscription, exit_status,
};
use tidegate_sim::medium::Change;

use crate::{
    poll_async::poll,
    site::{App, Site, Subscriber, frame, within},
};

pub(crate) fn change(text: &str) -> Change {
    text.parse().expect("a change")
}

#[test]
fn a_killed_camera_comes_back_to_its_subscriber() {
    let Some(site) = Site::up() else { return };
    site.app(async |app: App| {
        let mut subscription = app.subscribe(|_| {}).await;
        let last = frame(&mut subscription).await;
        site.kill_camera();
        let killed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        site.start_camera();
        let mut next = frame(&mut subscription).await;
        while u128::try_from(next.captured_at.as_nanos()).is_ok_and(|at| at < killed.as_nanos()) {
            next = frame(&mut subscription).await;
        }
        // Its log continues where it was.
        assert_eq!(next.epoch, last.epoch);
    });
}

#[test]
fn a_camera_of_another_authority_is_told_so_and_disturbs_nobody() {
    let Some(site) = Site::up() else { return };
    std::thread::scope(|scope| {
        site.app(async |app: App| {
            let mut healthy = app.subscribe(|_| {}).await;
            frame(&mut healthy).await;
            // On a thread of its own: the application takes its frames meanwhile.
            let stranger = scope.spawn(|| site.stranger());
            while !stranger.is_finished() {
                undisturbed(&mut healthy, 1).await;
            }
            let (status, said) = stranger.join().expect("its end is seen");
            assert_eq!(status, Some(exit_status(Code::IDENTITY_REFUSED).into()), "{said}");
            assert!(said.contains("code: auth.identity.refused"), "{said}");
            undisturbed(&mut healthy, 20).await;
            assert_eq!(app.client.cameras().await.expect("the list").len(), 1);
        });
    });
}

#[test]
fn a_killed_edge_node_loses_no_frame_of_a_subscriber_that_wants_every() {
    let Some(mut site) = Site::up() else { return };
    let last = site.app(async |app: App| {
        let every = |request: &mut SubscribeRequest| {
            request.demand.delivery = Delivery::Every;
        };
        let mut subscription = app.subscribe(every).await;
        frame(&mut subscription).await;
        frame(&mut subscription).await.captured_at
    });
    site.kill_node();
    std::thread::sleep(Duration::from_secs(1));
    site.start_node();
    // The dead node did not notify the application: it resumes from where it was.
    site.app(async |app: App| {
        let from = last + Duration::from_nanos(1);
        let mut subscription = app
            .subscribe(|request| {
                request.demand.delivery = Delivery::Every;
                request.from = Some(from);
            })
            .await;
        let mut seen = vec![last];
        while seen.len() < 30 {
            seen.push(frame(&mut subscription).await.captured_at);
        }
        assert_eq!(seen, app.captured(&seen).await);
    });
}

#[test]
fn a_subscriber_that_is_killed_or_stopped_disturbs_nobody() {
    let Some(site) = Site::up() else { return };
    site.app(async |app: App| frame(&mut app.subscribe(|_| {}).await).await);
    let subscriber = site.start_subscriber("killed");
    site.app(async |app: App| {
        saved(&subscriber, 3).await;
        let mut healthy = app.subscribe(|_| {}).await;
        subscriptions(&app, 2).await;
        drop(subscriber);
        undisturbed(&mut healthy, 20).await;
        subscriptions(&app, 1).await;
    });
    // Started again, it stands still for five seconds in the middle.
    let subscriber = site.start_subscriber("stopped");
    site.app(async |app: App| {
        saved(&subscriber, 3).await;
        let mut healthy = app.subscribe(|_| {}).await;
        subscriber.signal("STOP");
        undisturbed(&mut healthy, 50).await;
        let before = subscriber.frames();
        subscriber.signal("CONT");
        saved(&subscriber, before + 10).await;
        subscriptions(&app, 2).await;
    });
}

#[test]
fn a_camera_node_that_stands_still_is_told_by_the_rhythm_of_its_frames() {
    let Some(site) = Site::up() else { return };
    site.app(async |app: App| {
        let every = |request: &mut SubscribeRequest| request.demand.delivery = Delivery::Every;
        let mut subscription = app.subscribe(every).await;
        let mut came = Vec::new();
        while came.len() < 20 {
            came.push(frame(&mut subscription).await.captured_at);
        }
        site.signal_camera("STOP");
        let overdue = offline(&mut subscription, &mut came).await;
        assert!(overdue.contains("nothing came for"), "{overdue}");
        // Its link is reported dead later.
        let dead = offline(&mut subscription, &mut came).await;
        assert!(!dead.contains("nothing came for"), "{dead}");
        site.signal_camera("CONT");
        let end = came.len() + 20;
        while came.len() < end {
            came.push(frame(&mut subscription).await.captured_at);
        }
        assert_eq!(came, app.captured(&came).await, "in order, none missing, none twice");
    });
}

#[test]
fn an_edge_node_that_stands_still_is_told_and_goes_on_where_it_was() {
    let Some(site) = Site::up() else { return };
    site.app(async |app: App| {
        let every = |request: &mut SubscribeRequest| request.demand.delivery = Delivery::Every;
        let mut subscription = app.subscribe(every).await;
        let mut came = vec![frame(&mut subscription).await.captured_at];
        site.signal_node("STOP");
        let gone = offline(&mut subscription, &mut came).await;
        assert!(gone.contains("the connection to node"), "{gone}");
        site.signal_node("CONT");
        let end = came.len() + 30;
        while came.len() < end {
            came.push(frame(&mut subscription).await.captured_at);
        }
        assert_eq!(came, app.captured(&came).await, "in order, none missing, none twice");
    });
}

/// Takes frames until the camera is reported as offline; returns the reason.
async fn offline(subscription: &mut Subscription, came: &mut Vec<Instant>) -> String {
    loop {
        match within(60, subscription.next()).await.expect("it continues").expect("it holds") {
            Event::Frame(frame) => came.push(frame.captured_at),
            Event::CameraOffline(why) => return why.to_string(),
            _ => {}
        }
    }
}

/// Waits until a subscriber has saved that many frames.
async fn saved(subscriber: &Subscriber, count: usize) {
    let is_enough = async || (subscriber.frames() >= count).then_some(());
    poll(Duration::from_secs(60), is_enough).await.expect("they come in time");
}

/// Waits until the node serves that many subscriptions of the camera.
async fn subscriptions(app: &App, count: u32) {
    let name = "cam1".parse().expect("a camera name");
    let is_so = async || {
        let info = app.client.camera(&name).await.expect("the camera's info");
        (info.subscriptions == count).then_some(())
    };
    poll(Duration::from_secs(60), is_so).await.expect("it comes in time");
}

/// Takes that many frames and finds each in time, and none missed.
async fn undisturbed(subscription: &mut Subscription, count: usize) {
    let mut taken = 0;
    while taken < count {
        match within(60, subscription.next()).await.expect("it continues").expect("it holds") {
            Event::Frame(frame) => {
                assert!(frame.stages.total() <= Duration::from_secs(2), "{:?}", frame.stages);
                taken += 1;
            }
            Event::Missed(missed) => panic!("{missed:?}"),
            _ => {}
        }
    }
}

#[test]
fn a_link_cut_for_five_seconds_is_bridged_by_the_cameras_log() {
    let Some(site) = Site::up() else { return };
    let lab = &site.lab;
    let (seen, cut) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            cut.recv().expect("a first frame");
            lab.apply(change("air0 factor=0")).expect("a cut");
            std::thread::sleep(Duration::from_secs(5));
            lab.apply(change("air0 factor=1")).expect("a mended link");
        });
        site.app(async |app: App| {
            let mut subscription =
                app.subscribe(|request| request.demand.delivery = Delivery::Every).await;
            let mut came = vec![frame(&mut subscription).await.captured_at];
            seen.send(()).expect("the link is cut");
            let mut longest = Duration::ZERO;
            while came.len() < 90 {
                let waited = tidegate_process::clock::now();
                came.push(frame(&mut subscription).await.captured_at);
                longest = longest.max(tidegate_process::clock::now().since(waited));
            }
            assert!(longest > Duration::from_secs(3), "the link was cut: {longest:?}");
            assert_eq!(came, app.captured(&came).await);
        });
    });
}

#[test]
fn the_past_runs_into_the_future_over_a_narrow_link() {
    let Some(site) = Site::up() else { return };
    site.app(async |app: App| {
        let name = "cam1".parse().expect("a camera name");
        let is_long = async || {
            let info = app.client.camera(&name).await.ok()?;
            (info.newest_at?.since(info.oldest_at?) >= Duration::from_secs(2)).then_some(())
        };
        poll(Duration::from_secs(60), is_long).await.expect("it captures");
        let mut subscription = app
            .subscribe(|request| {
                request.demand.delivery = Delivery::Every;
                request.from = Some(Instant::EPOCH);
            })
            .await;
        let first = frame(&mut subscription).await;
        assert!(first.replayed);
        let mut seen = vec![first.captured_at];
        loop {
            let frame = frame(&mut subscription).await;
            seen.push(frame.captured_at);
            if !frame.replayed {
                break;
            }
        }
        assert_eq!(seen, app.captured(&seen).await);
    });
}
