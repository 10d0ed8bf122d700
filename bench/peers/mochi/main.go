// Command mochi serves MQTT with the broker library mochi-mqtt: the peer that stands beside Tidegate's own figures.
//
//	mochi ADDRESS
//
// Its settings are the library's defaults but for what a load would run into: everybody may do everything, sessions may have as many
// messages on the way as packet identifiers allow, and a slow subscriber may have more of them waiting.
package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("mochi", mqtt.Version)
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mochi:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("say the address to listen on")
	}
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumInflight = math.MaxUint16
	capabilities.MaximumClientWritesPending = 64 * 1024
	capabilities.ReceiveMaximum = math.MaxUint16
	server := mqtt.New(&mqtt.Options{
		Capabilities: capabilities,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		return err
	}
	if err := server.AddListener(listeners.NewTCP(listeners.Config{ID: "main", Address: arguments[0]})); err != nil {
		return err
	}
	if err := server.Serve(); err != nil {
		return err
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	<-told
	return server.Close()
}
