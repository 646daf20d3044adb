// The Quipu's driver for PyTorch: a device type of its own ("quipu"), whose memory this machine's
// processor can read. Every operation without a kernel of its own is computed by the processor, in
// place: no tensor is copied. A vendor's driver has the same parts, and kernels.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/set_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <cstdlib>

namespace {

constexpr auto QUIPU = c10::DeviceType::PrivateUse1;
thread_local c10::DeviceIndex current = 0;

int devices() {
  const char* count = std::getenv("QUIPU_DEVICES_HERE");
  return count ? std::atoi(count) : 1;
}

// --- memory ---------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::GetCPUAllocator()->raw_allocate(bytes) : nullptr;
    return {data, data, &release, c10::Device(QUIPU, current)};
  }
  static void release(void* data) {
    if (data) c10::GetCPUAllocator()->raw_deallocate(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(QUIPU, &memory);

// --- the device: one stream, in which everything has happened when a call returns -------------

struct Guard final : c10::impl::NoOpDeviceGuardImpl<QUIPU> {
  c10::Device getDevice() const override { return {QUIPU, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override { current = std::max<c10::DeviceIndex>(device.index(), 0); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, {QUIPU, std::max<c10::DeviceIndex>(device.index(), 0)});
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return devices(); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = memory.allocate(bytes);
    std::memcpy(fresh.mutable_get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// --- the same memory, seen by the processor and by the device ---------------------------------

// The memory of `owner`, which it keeps, as memory of `device`.
c10::DataPtr memory_of(const c10::Storage& owner, c10::Device device) {
  return {owner.mutable_data(), new c10::Storage(owner),
          [](void* holder) { delete static_cast<c10::Storage*>(holder); }, device};
}

c10::Storage over(const c10::Storage& owner, c10::Device device, c10::Allocator* allocator) {
  return c10::Storage(c10::Storage::use_byte_size_t(), owner.nbytes(), memory_of(owner, device),
                      allocator, /*resizable=*/true);
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& shape) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), shape.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sym_sizes(), shape.sym_strides(),
                                                      shape.sym_storage_offset());
  if (shape.is_conj()) result._set_conj(true);
  if (shape.is_neg()) result._set_neg(true);
  return result;
}

bool is_quipu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == QUIPU;
}

// The processor's view of a tensor, in the same memory.
at::Tensor host(const at::Tensor& tensor) {
  if (!is_quipu(tensor)) return tensor;
  auto storage = over(tensor.storage(), c10::kCPU, c10::GetCPUAllocator());
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, tensor);
}

// An operation may have given the processor's view another size, and other memory.
void follow(const at::Tensor& tensor, const at::Tensor& view) {
  if (tensor.storage().data() != view.storage().data()) {
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr(memory_of(view.storage(), tensor.device()));
    storage->set_nbytes(view.storage().nbytes());
  }
  if (tensor.sym_sizes() != view.sym_sizes() || tensor.sym_strides() != view.sym_strides())
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view.sym_sizes(), view.sym_strides(),
                                                        view.sym_storage_offset());
}

// The device's view of a result: of an operand's memory, or of memory of its own on `device`.
at::Tensor back(const at::Tensor& result, const std::vector<at::Tensor>& operands,
                c10::Device device) {
  if (!result.defined() || result.device().type() != c10::kCPU) return result;
  for (const auto& operand : operands)
    if (result.storage().data() && result.storage().data() == operand.storage().data())
      return tensor_over(operand.storage(), c10::DispatchKey::PrivateUse1, result);
  auto storage = over(result.storage(), device, &memory);
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, result);
}

// --- every operation without a kernel ----------------------------------------------------------

void by_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  std::vector<c10::IValue> given(stack->begin() + first, stack->end());
  std::vector<at::Tensor> operands, views;
  // An operation that makes a tensor may say where; otherwise it is where the operands are.
  std::optional<c10::Device> wanted;
  auto lend = [&](const at::Tensor& tensor) {
    auto view = host(tensor);
    if (is_quipu(tensor)) {
      operands.push_back(tensor);
      views.push_back(view);
    }
    return view;
  };
  for (size_t place = 0; place < given.size(); ++place) {
    auto& value = (*stack)[first + place];
    if (value.isTensor()) {
      value = lend(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(lend(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::make_optional(lend(*tensor)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      wanted = value.toDevice();
      value = c10::Device(c10::kCPU);
    }
  }
  const auto& name = op.schema().name();
  if (name != "aten::copy_" && name != "aten::_to_copy")
    for (const auto& operand : operands)
      TORCH_CHECK(operand.device() == operands[0].device(), name, ": tensors on ",
                  operands[0].device(), " and ", operand.device());
  op.callBoxed(stack);
  for (size_t place = 0; place < views.size(); ++place) follow(operands[place], views[place]);
  auto device = wanted.value_or(operands.empty() ? c10::Device(QUIPU) : operands[0].device());
  if (device.type() == QUIPU && !device.has_index()) device.set_index(current);
  auto bring = [&](const at::Tensor& tensor) {
    return device.is_cpu() ? tensor : back(tensor, operands, device);
  };
  const auto& returns = op.schema().returns();
  const auto result = stack->size() - returns.size();
  for (size_t place = 0; place < returns.size(); ++place) {
    auto& value = (*stack)[result + place];
    // What was written to is what was given.
    const auto* alias = returns[place].alias_info();
    if (alias && alias->isWrite()) {
      for (size_t other = 0; other < arguments.size(); ++other) {
        const auto* written = arguments[other].alias_info();
        if (written && written->isWrite() && *written == *alias) value = given[other];
      }
    } else if (value.isTensor()) {
      value = bring(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(bring(tensor));
      value = list;
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_processor>());
}

void nothing(at::Tensor&, c10::Stream) {}

// Without this, a module that moves here gets new parameters, without the attributes that say how
// they are split over ranks: it would train, and wrongly.
bool may_take_the_place(const at::Tensor&, const at::Tensor&) { return true; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // What torch has a general form of, which would ask for other operations than the processor's.
  for (const char* name : {"copy_", "_to_copy", "resize_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_processor>());
  // What takes a storage takes the device's.
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("record_stream", &nothing);
  m.impl("_has_compatible_shallow_copy_type", &may_take_the_place);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("host", &host, "The processor's view of a tensor, in the same memory.");
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int index) { current = index; });
}
