//go:build tools

// Package tools names the program that is built beside etcd, so that go.mod keeps its modules.
package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
