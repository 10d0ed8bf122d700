//! One adapted stream of one camera on a link: the encodings of [`tidegate_message::transfer`].

use bytes::BytesMut;
use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Delivery, Demand, FrameRate, WhenInfeasible,
    transfer::{
        Ack, EndReason, FrameHeader, Share, StartTransfer, StopTransfer, TransferEnded,
        TransferHints, TransferId, TransferRefused, TransferStarted, Unchanged, UpdateTransfer,
    },
};

use crate::{
    code::{DecodeError, Field, Input, choice, fields},
    limits::FRAME_BYTES_MAX,
};

impl Field for TransferId {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        u64::take(input).map(Self)
    }
}

choice!(EndReason { Stopped = 1, Complete = 2, SourceEnded = 3, Failed = 4 });
choice!(ControllerKind { Budget = 1, MezPi = 2, Aimd = 3, Fixed = 4 });
choice!(Delivery { Latest = 1, Every = 2 });
choice!(WhenInfeasible { KeepLatency = 1, KeepAccuracy = 2, Pause = 3 });
choice!(AdaptationProfile { Jpeg = 1, Mez = 2 });

fields!(TransferHints { detector, detector_input, scene, table });

// Demands are followed by other fields: the fields added to them by version 1.2 end the records.
impl Field for StartTransfer {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        put_demand(&self.demand, out);
        self.from.put(out);
        self.to.put(out);
        self.resume_after.put(out);
        self.hints.put(out);
        self.demand.frame_rate.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let transfer = input.field("transfer")?;
        let demand = take_demand(input)?;
        let (from, to) = (input.field("from")?, input.field("to")?);
        let (resume_after, hints) = (input.field("resume_after")?, input.field("hints")?);
        let demand = Demand { frame_rate: take_frame_rate(input)?, ..demand };
        Ok(Self { transfer, demand, from, to, resume_after, hints })
    }
}

impl Field for UpdateTransfer {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        put_demand(&self.demand, out);
        self.demand.frame_rate.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let transfer = input.field("transfer")?;
        let demand = take_demand(input)?;
        Ok(Self { transfer, demand: Demand { frame_rate: take_frame_rate(input)?, ..demand } })
    }
}

fn put_demand(demand: &Demand, out: &mut BytesMut) {
    demand.bounds.put(out);
    demand.controller.put(out);
    demand.delivery.put(out);
    demand.when_infeasible.put(out);
    demand.profile.put(out);
}

fn take_demand(input: &mut Input<'_>) -> Result<Demand, DecodeError> {
    Ok(Demand {
        bounds: input.field("bounds")?,
        controller: input.field("controller")?,
        delivery: input.field("delivery")?,
        when_infeasible: input.field("when_infeasible")?,
        profile: input.field("profile")?,
        frame_rate: None,
    })
}

/// A peer before version 1.2 has none.
fn take_frame_rate(input: &mut Input<'_>) -> Result<Option<FrameRate>, DecodeError> {
    if input.is_empty() { Ok(None) } else { input.field("frame_rate") }
}

impl Field for FrameRate {
    fn put(&self, out: &mut BytesMut) {
        self.frames_per_second().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let rate = f64::take(input)?;
        Self::new(rate).map_err(|error| DecodeError::invalid(input.field, error))
    }
}

fields!(StopTransfer { transfer });
fields!(TransferStarted { transfer, first });
fields!(TransferRefused { transfer, code, text });
fields!(TransferEnded { transfer, reason });
fields!(Share { bytes_per_second, shift, valid_for });
fields!(Unchanged { transfer, at });
fields!(Ack { transfer, frame, received, total, first_at, last_at, complete, reset_seen });

impl Field for Bounds {
    fn put(&self, out: &mut BytesMut) {
        self.latency().put(out);
        self.accuracy().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let latency = input.field("latency")?;
        let accuracy = input.field("accuracy")?;
        Self::new(latency, accuracy).map_err(|error| DecodeError::invalid("bounds", error))
    }
}

// The field that version 1.4 added ends the record.
impl Field for FrameHeader {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        self.at.put(out);
        self.bytes.put(out);
        self.size.put(out);
        self.original_bytes.put(out);
        self.row.put(out);
        self.setting.put(out);
        self.accuracy.put(out);
        self.accuracy_kept.put(out);
        self.replayed.put(out);
        self.encode_started.put(out);
        self.encode_ended.put(out);
        self.sent.put(out);
        self.source_size.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let header = Self {
            transfer: input.field("transfer")?,
            at: input.field("at")?,
            bytes: input.field("bytes")?,
            size: input.field("size")?,
            original_bytes: input.field("original_bytes")?,
            row: input.field("row")?,
            setting: input.field("setting")?,
            accuracy: input.field("accuracy")?,
            accuracy_kept: input.field("accuracy_kept")?,
            replayed: input.field("replayed")?,
            encode_started: input.field("encode_started")?,
            encode_ended: input.field("encode_ended")?,
            sent: input.field("sent")?,
            source_size: if input.is_empty() { None } else { input.field("source_size")? },
        };
        checked_header(&header)?;
        Ok(header)
    }
}

fn checked_header(header: &FrameHeader) -> Result<(), DecodeError> {
    if header.bytes > FRAME_BYTES_MAX {
        let (count, limit) = (header.bytes, FRAME_BYTES_MAX);
        return Err(DecodeError::TooLong { field: "frame", count, limit });
    }
    if !(0.0..=1.0).contains(&header.accuracy) {
        return Err(DecodeError::invalid("accuracy", header.accuracy));
    }
    Ok(())
}
