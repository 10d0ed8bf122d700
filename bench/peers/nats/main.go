// Command nats-frames sends camera frames through NATS and measures the time from publish to callback: the peer that stands
// beside Tidegate's own figures.
//
//	nats-frames publish   --url URL --subject cam1 --frames FOLDER --fps 15 --seconds 20 --csv sent.csv
//	nats-frames subscribe --url URL --subject cam1 --subscribers 3 --seconds 22 --csv received.csv
//
// Both sides read CLOCK_MONOTONIC, which network namespaces share, so that their difference is the latency. A message is a
// 16-byte header (sequence number, then publish time in ns, both big-endian) and the frame. Frames are read and held before the
// first is sent, and leave on a fixed schedule: a publisher that falls behind is late, it does not slow the cameras down.
//
// Columns: sequence,sent_ns,bytes when publishing, and subscriber,sequence,sent_ns,received_ns,bytes when subscribing.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
)

const headerBytes = 16

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats-frames:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("say publish or subscribe")
	}
	switch arguments[0] {
	case "publish":
		return publish(arguments[1:])
	case "subscribe":
		return subscribe(arguments[1:])
	default:
		return fmt.Errorf("no command %q: say publish or subscribe", arguments[0])
	}
}

// now reads the clock that all processes of one machine share, in ns.
func now() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("reading CLOCK_MONOTONIC: %w", err)
	}
	return t.Nano(), nil
}

// link holds the arguments that both sides share.
type link struct {
	url        *string
	subject    *string
	csv        *string
	congestion *string
	seconds    *float64
}

func linkFlags(flags *flag.FlagSet) link {
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = nats.DefaultURL
	}
	return link{
		url:        flags.String("url", url, "address of the server"),
		subject:    flags.String("subject", "frames", "subject to publish to or to receive"),
		csv:        flags.String("csv", "-", "file for the samples, - for stdout"),
		congestion: flags.String("congestion", "", "TCP congestion control of this side, such as cubic; the system's if empty"),
		seconds:    flags.Float64("seconds", 10, "how long to run, in s"),
	}
}

// connect dials the server. NATS itself sets TCP_NODELAY, as we do on our own sockets.
func (l link) connect() (*nats.Conn, error) {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		if *l.congestion == "" {
			return nil
		}
		var set error
		err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, *l.congestion)
		})
		return errors.Join(err, set)
	}}
	connection, err := nats.Connect(*l.url, nats.SetCustomDialer(dialer), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			fmt.Fprintln(os.Stderr, "nats-frames:", err)
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", *l.url, err)
	}
	return connection, nil
}

// samples is a CSV file of which every error is kept until it is closed.
type samples struct {
	file   *os.File
	writer *bufio.Writer
}

func (l link) samples(columns string) (*samples, error) {
	file := os.Stdout
	if *l.csv != "-" {
		made, err := os.Create(*l.csv)
		if err != nil {
			return nil, err
		}
		file = made
	}
	s := &samples{file: file, writer: bufio.NewWriter(file)}
	_, err := fmt.Fprintln(s.writer, columns)
	return s, err
}

func (s *samples) close() error {
	err := s.writer.Flush()
	if s.file != os.Stdout {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// readFrames returns the JPEG files of a folder in the order of their names.
func readFrames(folder string) ([][]byte, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		extension := strings.ToLower(filepath.Ext(entry.Name()))
		if extension == ".jpg" || extension == ".jpeg" {
			names = append(names, entry.Name())
		}
	}
	sort.Strings(names)
	var frames [][]byte
	for _, name := range names {
		frame, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		frames = append(frames, frame)
	}
	if len(frames) == 0 {
		return nil, fmt.Errorf("%s holds no .jpg file", folder)
	}
	return frames, nil
}

func publish(arguments []string) error {
	flags := flag.NewFlagSet("publish", flag.ExitOnError)
	l := linkFlags(flags)
	folder := flags.String("frames", "", "folder of JPEG frames, sent in turn; or give --bytes")
	size := flags.Int("bytes", 0, "send frames of this size instead, in bytes")
	fps := flags.Float64("fps", 5, "frames per second")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var frames [][]byte
	switch {
	case *folder != "":
		read, err := readFrames(*folder)
		if err != nil {
			return err
		}
		frames = read
	case *size > 0:
		frames = [][]byte{make([]byte, *size)}
	default:
		return errors.New("give --frames or --bytes")
	}
	if *fps <= 0 {
		return fmt.Errorf("--fps %v must be above 0", *fps)
	}
	connection, err := l.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	out, err := l.samples("sequence,sent_ns,bytes")
	if err != nil {
		return err
	}

	period := time.Duration(float64(time.Second) / *fps)
	start := time.Now()
	count := int(*l.seconds * *fps)
	for sequence := 0; sequence < count; sequence++ {
		// A time to be at, not a time to wait: late frames are not made up for by later ones.
		time.Sleep(time.Until(start.Add(time.Duration(sequence) * period)))
		frame := frames[sequence%len(frames)]
		captured, err := now()
		if err != nil {
			return err
		}
		message := make([]byte, headerBytes+len(frame))
		binary.BigEndian.PutUint64(message, uint64(sequence))
		binary.BigEndian.PutUint64(message[8:], uint64(captured))
		copy(message[headerBytes:], frame)
		if err := connection.Publish(*l.subject, message); err != nil {
			return fmt.Errorf("publishing frame %d: %w", sequence, err)
		}
		if _, err := fmt.Fprintf(out.writer, "%d,%d,%d\n", sequence, captured, len(frame)); err != nil {
			return err
		}
	}
	// Wait for the server to have it all, as far as the link allows in the time that is left to a subscriber.
	return errors.Join(connection.FlushTimeout(10*time.Second), out.close())
}

func subscribe(arguments []string) error {
	flags := flag.NewFlagSet("subscribe", flag.ExitOnError)
	l := linkFlags(flags)
	subscribers := flags.Int("subscribers", 1, "subscribers of this process, each with a connection of its own")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	out, err := l.samples("subscriber,sequence,sent_ns,received_ns,bytes")
	if err != nil {
		return err
	}
	var lock sync.Mutex
	var failed error
	for subscriber := 0; subscriber < *subscribers; subscriber++ {
		connection, err := l.connect()
		if err != nil {
			return err
		}
		defer connection.Close()
		subscription, err := connection.Subscribe(*l.subject, func(message *nats.Msg) {
			received, err := now()
			lock.Lock()
			defer lock.Unlock()
			if err == nil && len(message.Data) < headerBytes {
				err = fmt.Errorf("a message of %d bytes is no frame", len(message.Data))
			}
			if err == nil {
				_, err = fmt.Fprintf(out.writer, "%d,%d,%d,%d,%d\n", subscriber,
					binary.BigEndian.Uint64(message.Data), binary.BigEndian.Uint64(message.Data[8:]),
					received, len(message.Data)-headerBytes)
			}
			failed = errors.Join(failed, err)
		})
		if err != nil {
			return err
		}
		// The client's default limit would drop frames of a burst: its best fair setting is none.
		if err := subscription.SetPendingLimits(-1, -1); err != nil {
			return err
		}
		if err := connection.Flush(); err != nil {
			return err
		}
	}
	// Whoever starts us waits for this line before it starts the cameras.
	fmt.Fprintln(os.Stderr, "ready")
	time.Sleep(time.Duration(*l.seconds * float64(time.Second)))
	lock.Lock()
	defer lock.Unlock()
	return errors.Join(failed, out.close())
}
