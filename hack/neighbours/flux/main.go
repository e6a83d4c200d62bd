// What Flux does with one object: its own engine compares a manifest with the cluster, and applies it if asked.
//
//	flux [-apply] [-ignore /spec/replicas] KUBECONFIG MANIFEST.json
//
// It prints the engine's word: created, configured, unchanged, or the refusal.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func main() {
	apply := flag.Bool("apply", false, "apply it")
	ignore := flag.String("ignore", "", "a JSON pointer that is left alone")
	flag.Parse()
	word, err := judge(flag.Arg(0), flag.Arg(1), *ignore, *apply)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(word)
}

func judge(kubeconfig, manifest, ignore string, apply bool) (string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	kube, err := client.New(config, client.Options{})
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", err
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &object.Object); err != nil {
		return "", err
	}
	var rules []jsondiff.IgnoreRule
	if ignore != "" {
		rules = []jsondiff.IgnoreRule{{Paths: []string{ignore}}}
	}
	owner := ssa.Owner{Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io"}
	manager := ssa.NewResourceManager(kube, nil, owner)
	if apply {
		options := ssa.DefaultApplyOptions()
		options.DriftIgnoreRules = rules
		entry, err := manager.Apply(context.Background(), object, options)
		if err != nil {
			return "", err
		}
		return entry.Action.String(), nil
	}
	options := ssa.DefaultDiffOptions()
	options.DriftIgnoreRules = rules
	entry, _, _, err := manager.Diff(context.Background(), object, options)
	if err != nil {
		return "", err
	}
	return entry.Action.String(), nil
}
