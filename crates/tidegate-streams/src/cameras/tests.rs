//! Requests to a camera, with the test as its link.

use tidegate_api::SubscribeRequest;
use tidegate_log::LogConfig;
use tidegate_message::Delivery;

use super::*;
use crate::{
    entry::{Arrival, Meta},
    tests::{OWNER, announce, ms},
};

fn demand(delivery: Delivery) -> Demand {
    let request = SubscribeRequest::new("cam1", Duration::from_secs(2), 0.5).unwrap();
    Demand { delivery, ..request.demand }
}

fn attach(cameras: &Cameras, epoch: u64) -> (Arc<Camera>, Attachment) {
    cameras.attach(announce(), OWNER, epoch, "test".to_owned()).unwrap()
}

fn start_stream(camera: &Camera, from: Option<Instant>) -> Arc<Stream> {
    let reads = if from.is_some() { Reads::Past } else { Reads::Present };
    start_stream_after(camera, from, None, reads)
}

fn start_stream_after(
    camera: &Camera,
    from: Option<Instant>,
    after: Option<(Epoch, Instant)>,
    reads: Reads,
) -> Arc<Stream> {
    let log = LogConfig { bytes_max: 1 << 16, segment_bytes: 1 << 12 }.into();
    let demand = demand(Delivery::Every);
    let begin = Begin { range: (from, None), after, reads };
    camera.start_stream(demand, TransferHints::default(), begin, log).unwrap()
}

/// The next transfer that is asked for.
fn started(link: &mut Attachment) -> StartTransfer {
    match link.records.try_recv() {
        Ok(Record::StartTransfer(start)) => start,
        other => panic!("{other:?}"),
    }
}

fn append(stream: &Stream, life: Epoch, at: Instant) {
    let arrival = Arrival { life, first_at: at, last_at: at, offset_nanos: 0 };
    let marker = tidegate_wire::Unchanged { transfer: stream.transfer, at };
    stream.append(at, arrival, &Meta::Unchanged(marker), &Bytes::new()).unwrap();
}

#[test]
fn a_restarted_camera_is_asked_for_all_of_its_new_life() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    let stream = start_stream(&camera, Some(ms(500)));
    assert_eq!(started(&mut link).from, Some(ms(500)));
    append(&stream, link.life, ms(1000));

    let (_, mut same) = attach(&cameras, 71);
    assert_eq!(same.life, link.life);
    let start = started(&mut same);
    assert_eq!((start.from, start.resume_after), (Some(ms(500)), Some(ms(1000))));

    // The new link breaks before anything came over it: the next one asks for all, too.
    for _ in 0..2 {
        let (_, mut restarted) = attach(&cameras, 72);
        assert!(restarted.life > link.life);
        let start = started(&mut restarted);
        assert_eq!((start.from, start.resume_after), (Some(Instant::MIN), Some(Instant::MIN)));
    }
}

#[test]
fn a_beginning_that_is_not_reached_yet_is_kept_by_a_restarted_camera() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    start_stream(&camera, Some(ms(500)));
    started(&mut link);
    let (_, mut restarted) = attach(&cameras, 72);
    assert_eq!(started(&mut restarted).from, Some(ms(500)));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_waits_for_any_more_is_forgotten() {
    let cameras = Cameras::default();
    let (camera, link) = attach(&cameras, 71);
    let error = camera.ask_info().unwrap().answer().await.unwrap_err();
    assert_eq!(error.code(), Code::CAMERA_OFFLINE);
    assert!(error.message().contains("did not answer within 5 s"), "{error}");
    assert!(camera.state().questions.is_empty(), "after the time-out");
    let asked = camera.ask_original(ms(5)).unwrap();
    assert_eq!(camera.state().questions.len(), 1);
    drop(asked);
    assert!(camera.state().questions.is_empty(), "after the asker hung up");
    drop(link);
    camera.ask_info().map(|_| ()).unwrap_err();
    assert!(camera.state().questions.is_empty(), "where no link took it");
}

#[test]
fn a_cameras_own_certificate_takes_its_name_from_who_only_registered_it() {
    let owner = |key, certified| Owner { node: NodeId([key; 32]), certified };
    for (holder, newcomer, replaces) in [
        (owner(1, false), owner(1, false), true),
        (owner(1, false), owner(2, false), false),
        (owner(1, false), owner(2, true), true),
        (owner(1, true), owner(2, false), false),
        (owner(1, true), owner(2, true), false),
        (owner(1, true), owner(1, true), true),
    ] {
        let cameras = Cameras::default();
        cameras.attach(announce(), holder, 71, "test".to_owned()).unwrap();
        let may = cameras.may_attach(&announce().name, newcomer);
        let attached = cameras.attach(announce(), newcomer, 72, "test".to_owned());
        let case = format!("{newcomer:?} after {holder:?}");
        assert_eq!(may.is_ok(), replaces, "{case}");
        assert_eq!(attached.map(|_| ()).map_err(|e| e.code()), may.map_err(|e| e.code()), "{case}");
    }
}

#[test]
fn a_camera_whose_name_is_anothers_stays() {
    let mine = NodeId([9; 32]);
    assert_ne!(OWNER.node, mine);
    let cameras = Cameras::default();
    let name = announce().name;
    let (camera, _records) = attach(&cameras, 71);
    let stream = start_stream(&camera, None);
    cameras.remove_unless_of_another(&name, mine);
    assert!(camera.is_online() && stream.is_open());
    assert!(cameras.named(&name, |_| true).is_ok());
    cameras.remove_unless_of_another(&name, OWNER.node);
    assert!(!camera.is_online() && !stream.is_open());
    assert!(cameras.named(&name, |_| true).is_err());
    // Of a name that was let go of, there is no other holder.
    let (camera, link) = attach(&cameras, 72);
    camera.detach(link.id, "gone");
    cameras.release_if_offline(&name);
    cameras.remove_unless_of_another(&name, mine);
    assert!(cameras.named(&name, |_| true).is_err());
}

#[test]
fn a_live_stream_fills_gaps_as_long_as_a_session_from_the_past_reads_it() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    let stream = start_stream(&camera, None);
    started(&mut link);
    append(&stream, link.life, ms(1000));
    let join = |from: Option<Instant>, own: Option<&Stream>| {
        let reads = if from.is_some() { Reads::Past } else { Reads::Present };
        let joined = camera.join(&stream.demand(), &stream.hints, from, reads, own);
        joined.map(|joined| joined.transfer)
    };
    assert_eq!(join(None, None), Some(stream.transfer));
    let (_, mut link) = attach(&cameras, 71);
    assert_eq!(started(&mut link).from, None, "the past is not wanted");

    assert_eq!(join(Some(ms(999)), None), None, "its log begins later");
    assert_eq!(join(Some(ms(1000)), Some(&stream)), None, "it is the own one");
    assert_eq!(join(Some(ms(1000)), None), Some(stream.transfer));
    let (_, mut link) = attach(&cameras, 71);
    let start = started(&mut link);
    assert_eq!((start.from, start.resume_after), (Some(Instant::MIN), Some(ms(1000))));

    assert!(!camera.leave(&stream, Reads::Past), "others read it");
    let (_, mut link) = attach(&cameras, 71);
    assert_eq!(started(&mut link).from, None, "the past is not wanted any more");
}

#[test]
fn a_stream_that_a_session_moves_to_begins_where_the_old_one_ends() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    for (reads, from) in [(Reads::Present, None), (Reads::Past, Some(Instant::MIN))] {
        let stream = start_stream_after(&camera, None, Some((link.life, ms(1000))), reads);
        let start = started(&mut link);
        assert_eq!((start.from, start.resume_after), (from, Some(ms(1000))), "{reads:?}");
        assert!(!stream.is_open(), "it has not caught up");
        // The link breaks before a frame came.
        let (_, mut again) = attach(&cameras, 71);
        let start = started(&mut again);
        assert_eq!((start.from, start.resume_after), (from, Some(ms(1000))), "{reads:?}");
        camera.leave(&stream, reads);
        link = again;
        link.records.try_recv().expect("the stream is stopped");
    }
    // The old stream has nothing of the camera's second life, in which all frames are news.
    let (camera, mut restarted) = attach(&cameras, 72);
    start_stream_after(&camera, None, Some((link.life, ms(1000))), Reads::Present);
    assert_eq!(started(&mut restarted).resume_after, Some(Instant::MIN));
}

#[test]
fn a_stream_whose_link_breaks_before_its_first_frame_goes_on_where_it_began() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    let stream = start_stream(&camera, None);
    assert_eq!(started(&mut link).resume_after, None);
    stream.began(link.life, ms(1000));
    let (_, mut again) = attach(&cameras, 71);
    let resumed = started(&mut again).resume_after;
    assert_eq!(
        resumed,
        Some(ms(1000) - Duration::from_nanos(1)),
        "the first frame was not received"
    );
}

#[test]
fn an_update_is_kept_for_a_camera_that_is_offline_and_has_no_effect_where_it_fails() {
    let cameras = Cameras::default();
    let (camera, mut link) = attach(&cameras, 71);
    let stream = start_stream(&camera, None);
    started(&mut link);
    let latest = demand(Delivery::Latest);
    while camera.tell(UpdateTransfer { transfer: stream.transfer, demand: latest }).is_ok() {}
    let error = camera.update_if_alone(&stream, latest).unwrap_err();
    assert_eq!(error.code(), Code::LIMIT_REACHED);
    assert_eq!(stream.demand(), demand(Delivery::Every), "nothing has changed");
    drop(link);
    assert!(camera.update_if_alone(&stream, latest).unwrap());
    let (_, mut back) = attach(&cameras, 71);
    assert_eq!(started(&mut back).demand, latest);
}
