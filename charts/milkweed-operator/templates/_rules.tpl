{{/* What each account may do: the same in one namespace and in all. */}}

{{- define "milkweed.operator" -}}
rules:
- apiGroups:
  - monarch.pytorch.org
  resources:
  - monarchmeshes
  verbs:
  - get
  - list
  - watch
  - delete
- apiGroups:
  - monarch.pytorch.org
  resources:
  - monarchmeshes/status
  verbs:
  - patch
- apiGroups:
  - monarch.pytorch.org
  resources:
  - monarchmeshes/finalizers
  verbs:
  - update
- apiGroups:
  - apps
  resources:
  - statefulsets
  verbs:
  - get
  - list
  - watch
  - create
  - update
- apiGroups:
  - ""
  resources:
  - services
  verbs:
  - get
  - list
  - watch
  - create
  - update
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - list
  - watch
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - get
  - list
  - create
  - patch
{{- end }}

{{- define "milkweed.client" -}}
rules:
- apiGroups:
  - monarch.pytorch.org
  resources:
  - monarchmeshes
  verbs:
  - get
  - list
  - watch
  - create
  - update
  - patch
  - delete
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - list
  - watch
- apiGroups:
  - ""
  resources:
  - pods/log
  verbs:
  - get
- apiGroups:
  - ""
  resources:
  - pods/portforward
  verbs:
  - get
  - create
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - list
- apiGroups:
  - batch
  resources:
  - jobs
  verbs:
  - get
  - list
  - create
  - patch
  - delete
- apiGroups:
  - ""
  resources:
  - secrets
  verbs:
  - get
  - create
  - patch
  - delete
{{- end }}

{{- define "milkweed.provision" -}}
rules:
- apiGroups:
  - monarch.pytorch.org
  resources:
  - monarchmeshes
  verbs:
  - get
  - list
  - create
  - patch
  - delete
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - list
- apiGroups:
  - ""
  resources:
  - secrets
  verbs:
  - get
  - create
  - update
  - delete
{{- end }}
