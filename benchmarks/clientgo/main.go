// Command clientgo lists pods into a client-go informer's store and prints what that costs.
//
// It is the reference for kubeloop's memory figures: the same pods from the same server, in Go's
// typed objects, with managedFields dropped or kept.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	url := flag.String("url", "", "the server")
	keep := flag.Bool("keep-managed-fields", false, "store managedFields too")
	flag.Parse()
	if err := run(*url, *keep); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url string, keep bool) error {
	config := &rest.Config{Host: url, QPS: -1}
	config.ContentType = "application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var options []informers.SharedInformerOption
	if !keep {
		options = append(options, informers.WithTransform(dropManagedFields))
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, options...)
	informer := factory.Core().V1().Pods().Informer()
	before := heap()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	started := time.Now()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%v did not sync", kind)
		}
	}
	wall := time.Since(started)
	after := heap()
	count := len(informer.GetStore().List())
	if count == 0 {
		return fmt.Errorf("no pods in the store")
	}
	if _, ok := informer.GetStore().List()[0].(*corev1.Pod); !ok {
		return fmt.Errorf("the store does not hold pods")
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"count":   count,
		"wall":    wall.Seconds(),
		"per_pod": float64(after-before) / float64(count),
		"peak":    peak(),
	})
}

func dropManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}

// heap returns the bytes of live objects, after everything else was freed.
func heap() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// peak returns the most memory that the process held, in bytes.
func peak() uint64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var kilobytes uint64
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(line, "VmHWM:") {
			fmt.Sscanf(strings.TrimPrefix(line, "VmHWM:"), "%d", &kilobytes)
		}
	}
	return kilobytes * 1024
}
